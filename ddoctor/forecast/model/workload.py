"""A model from a user's factory function, with its loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from ddoctor.forecast.model.blueprint import Batch, Blueprint
from ddoctor.memory_sweep.work import Shape, check_loss, checked, factory


class Outcome(NamedTuple):
    """The outputs of a forward pass, as a tuple, in which FSDP finds tensors."""

    loss: Tensor


class Trained(nn.Module):
    """A model whose forward pass returns its loss."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, samples: int, tokens: int | None = None) -> Outcome:
        """Return the outcome for this many synthetic samples, with ``tokens`` each if not None."""
        return Outcome(self._loss(self.model, *Shape(samples, tokens).arguments))


def from_factory(name: str, tokens: int | None = None) -> Blueprint:
    """Return the model of ``package.module:factory``, in this folder or installed.

    The factory's optimizer is not used. ``tokens``: per sample, if its loss takes their number.

    Raises:
        DoctorError: there is no such function. Its result is checked when the model is built.
    """
    make = factory(name, str(Path.cwd()))

    def build() -> nn.Module:
        work = checked(name, make())
        check_loss(work, Shape(1, tokens))
        return Trained(work.model, work.loss)

    def batch(samples: int, length: int) -> Batch:
        return {"samples": samples} if tokens is None else {"samples": samples, "tokens": length}

    return Blueprint(name=name, build=build, batch=batch, longest=tokens)
