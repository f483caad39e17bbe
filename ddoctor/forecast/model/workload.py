"""A model as a function of the user's own makes it, with the loss that it is trained by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from ddoctor.forecast.model.blueprint import Batch, Blueprint
from ddoctor.memory_sweep.work import Shape, check_loss, checked, factory


class Outcome(NamedTuple):
    """Of a forward pass; FSDP finds the tensors in a tuple."""

    loss: Tensor


class Trained(nn.Module):
    """A model whose forward pass returns its loss."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, samples: int, tokens: int | None = None) -> Outcome:
        """Of so many made-up samples, each of so many tokens, if its loss is to be told."""
        return Outcome(self._loss(self.model, *Shape(samples, tokens).told))


def from_factory(name: str, tokens: int | None = None) -> Blueprint:
    """Of ``package.module:factory``, in this folder or installed; its optimizer is not asked.

    ``tokens``: of each sample, if its loss is to be told.

    Raises:
        DoctorError: there is no such function. What it returns is looked at when it is built.
    """
    make = factory(name, str(Path.cwd()))

    def build() -> nn.Module:
        work = checked(name, make())
        check_loss(work, Shape(1, tokens))
        return Trained(work.model, work.loss)

    def batch(samples: int, length: int) -> Batch:
        return {"samples": samples} if tokens is None else {"samples": samples, "tokens": length}

    return Blueprint(name=name, build=build, batch=batch, longest=tokens)
