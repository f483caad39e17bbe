"""Optimizers by their names in a plan, with the memory that they take on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from ddoctor.forecast.optimizers import OPTIMIZERS, Keeps


class ByShape(Optimizer):
    """An optimizer whose states follow from the shapes; it updates parameters in place."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], keeps: Keeps, *, update: bool = False
    ) -> None:
        """Take the states of each parameter, and whether a step makes all updates at once."""
        super().__init__(parameters, {})
        self._keeps, self._update = keeps, update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Create the states the first time, and what a step makes; compute nothing."""
        made = []
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                if one not in self.state:
                    sizes = self._keeps(one.shape, one.itemsize)
                    new = one.new_empty
                    self.state[one] = {
                        str(number): new(size, dtype=torch.uint8)
                        for number, size in enumerate(sizes)
                    }
                if self._update:
                    made.append(torch.empty_like(one))


class MuonAndAdamW(Optimizer):
    """torch's Muon for matrices, and AdamW for all others, as Muon's documentation says."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        whole = list(parameters)
        super().__init__(whole, {})
        matrices = [one for one in whole if one.dim() == 2]
        others = [one for one in whole if one.dim() != 2]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(Muon(matrices))
        if others:
            self._parts.append(AdamW(others, foreach=True))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step both."""
        for one in self._parts:
            one.step()
            self.state.update(one.state)


def made(name: str, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the optimizer with this name of the table."""
    kind = OPTIMIZERS[name]
    if kind.torch == "Muon":
        return MuonAndAdamW(parameters)
    if not kind.torch:
        return ByShape(parameters, kind.keeps, update=kind.update)
    found: Optimizer = getattr(torch.optim, kind.torch)(parameters, **kind.settings)
    return found
