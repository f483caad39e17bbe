"""What is trained: a model, its optimizer and a loss, made by a function of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

from ddoctor.errors import DoctorError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# By name, since they have lain in several places of torch.
WAITING = {"FSDPModule", "FullyShardedDataParallel", "DistributedDataParallel", "SyncBatchNorm"}
CONTRACT = "return a model, its optimizer, and a function loss(model, samples)"


class Workload(NamedTuple):
    """What a factory returns."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[..., Tensor]
    """``loss(model, samples)`` of so many made-up samples; or ``loss(model, samples, tokens)``, of
    so many tokens each."""


def factory(name: str, folder: str) -> Callable[[], object]:
    """The function of ``package.module:factory``, in this folder or installed.

    Raises:
        DoctorError: there is none.
    """
    module_name, _, attribute = name.partition(":")
    # Last, so that a queue.py there is not taken for Python's own.
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise DoctorError(
            f"--workload {name}: there is no module {error.name} in {folder}, and none installed"
        ) from None
    found = getattr(module, attribute, None)
    if not callable(found):
        raise DoctorError(f"--workload {name}: {module_name} has no function {attribute}")
    made: Callable[[], object] = found
    return made


def checked(name: str, made: Any) -> Workload:
    """What the factory returned.

    Raises:
        DoctorError: it cannot be trained here.
    """
    import torch
    from torch import nn

    if not isinstance(made, tuple) or len(made) != 3:
        raise DoctorError(f"--workload {name} returned {_kind(made)}: {CONTRACT}")
    model, optimizer, loss = made
    fit = isinstance(model, nn.Module) and isinstance(optimizer, torch.optim.Optimizer)
    if not fit or not callable(loss):
        kinds = ", ".join(map(_kind, made))
        raise DoctorError(f"--workload {name} returned {kinds}: {CONTRACT}")
    # Their forward pass waits for all ranks, also for one that has run out of memory meanwhile.
    waits = next((one for one in model.modules() if _communicates(one)), None)
    if waits is not None:
        raise DoctorError(
            f"--workload {name}: the forward pass of {_kind(waits)} waits for the other ranks: "
            "give the model as it is before it is wrapped, and without SyncBatchNorm"
        )
    return Workload(model, optimizer, loss)


class Shape(NamedTuple):
    """Of what a step is tried with."""

    samples: int
    tokens: int | None = None
    """Of each; None: as the workload makes them."""

    @property
    def told(self) -> tuple[int, ...]:
        """As a loss takes it."""
        return (self.samples,) if self.tokens is None else (self.samples, self.tokens)


def check_loss(work: Workload, shape: Shape) -> None:
    """Whether it takes that.

    Raises:
        DoctorError: it takes no number of tokens, or wants one.
    """
    try:
        signature(work.loss).bind(work.model, *shape.told)
    except TypeError:
        if shape.tokens is None:
            raise DoctorError(
                "the loss of --workload takes more than (model, samples): if the third is the "
                "number of tokens of a sample, say --sequence N"
            ) from None
        raise DoctorError(
            "--sequence: the loss of --workload takes no third argument: have it be loss(model, "
            "samples, tokens), of so many tokens each"
        ) from None
    except ValueError:
        return  # written in another language, it does not tell


def _communicates(module: object) -> bool:
    return not WAITING.isdisjoint(kind.__name__ for kind in type(module).__mro__)


def _kind(made: object) -> str:
    return type(made).__name__
