"""The workload: a model, its optimizer and a loss, from a user's factory function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ddoctor.errors import DoctorError

# By name, as torch has moved them between modules.
WAITING = {"FSDPModule", "FullyShardedDataParallel", "DistributedDataParallel", "SyncBatchNorm"}
CONTRACT = "return a model, its optimizer, and a function loss(model, samples)"


class Workload(NamedTuple):
    """The result of a factory."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[..., Tensor]
    """``loss(model, samples)``, or ``loss(model, samples, tokens)`` with tokens per sample.

    It makes the synthetic samples itself."""


def factory(name: str, folder: str) -> Callable[[], object]:
    """Return the function of ``package.module:factory``, in this folder or installed.

    Raises:
        DoctorError: there is no such module or function.
    """
    module_name, _, attribute = name.partition(":")
    # Last, so that a queue.py there does not hide Python's.
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise DoctorError(
            f"--workload {name}: no module {error.name} in {folder}, and none installed"
        ) from None
    found = getattr(module, attribute, None)
    if not callable(found):
        raise DoctorError(f"--workload {name}: {module_name} has no function {attribute}")
    made: Callable[[], object] = found
    return made


def checked(name: str, made: Any) -> Workload:
    """Return the factory's result as a workload.

    Raises:
        DoctorError: it cannot be trained here.
    """
    if not isinstance(made, tuple) or len(made) != 3:
        raise DoctorError(f"--workload {name} returned {_kind(made)}: {CONTRACT}")
    model, optimizer, loss = made
    fit = isinstance(model, nn.Module) and isinstance(optimizer, torch.optim.Optimizer)
    if not fit or not callable(loss):
        kinds = ", ".join(map(_kind, made))
        raise DoctorError(f"--workload {name} returned {kinds}: {CONTRACT}")
    # Their forward pass waits for all ranks, also for one that ran out of memory.
    for module in model.modules():
        if not WAITING.isdisjoint(kind.__name__ for kind in type(module).__mro__):
            raise DoctorError(
                f"--workload {name}: the forward pass of {_kind(module)} waits for the other ranks:"
                " return the unwrapped model, without SyncBatchNorm"
            )
    return Workload(model, optimizer, loss)


class Shape(NamedTuple):
    """The input of a trial step."""

    samples: int
    tokens: int | None = None
    """Tokens per sample; None: the workload decides."""

    @property
    def arguments(self) -> tuple[int, ...]:
        """Return the arguments of a loss."""
        return (self.samples,) if self.tokens is None else (self.samples, self.tokens)


def check_loss(work: Workload, shape: Shape) -> None:
    """Check that the loss accepts this input.

    Raises:
        DoctorError: it accepts no number of tokens, or requires one.
    """
    try:
        signature(work.loss).bind(work.model, *shape.arguments)
    except TypeError:
        if shape.tokens is None:
            raise DoctorError(
                "the loss of --workload takes more than (model, samples): if the third is the "
                "number of tokens per sample, pass --sequence N"
            ) from None
        raise DoctorError(
            "--sequence: the loss of --workload takes no third argument: define loss(model, "
            "samples, tokens) with tokens per sample"
        ) from None
    except ValueError:
        return  # a native function has no signature


def _kind(made: object) -> str:
    return type(made).__name__
