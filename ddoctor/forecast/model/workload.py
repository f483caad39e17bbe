"""A model as a function of the user's own makes it, with the loss that it is trained by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.headroom.work import checked, factory


class Outcome(NamedTuple):
    """Of a forward pass; FSDP finds the tensors in a tuple."""

    loss: Tensor


class Trained(nn.Module):
    """A model whose forward pass returns its loss."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, int], Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, samples: int) -> Outcome:
        """Of so many made-up samples."""
        return Outcome(self._loss(self.model, samples))


def from_factory(name: str) -> Blueprint:
    """Of ``package.module:factory``, in this folder or installed; its optimizer is not asked.

    Raises:
        DoctorError: there is no such function. What it returns is looked at when it is built.
    """
    make = factory(name, str(Path.cwd()))

    def build() -> nn.Module:
        work = checked(name, make())
        return Trained(work.model, work.loss)

    return Blueprint(name=name, build=build, batch=lambda samples, length: {"samples": samples})
