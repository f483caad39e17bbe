"""Parameters that get gradients, and that no optimizer has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from ddoctor.recorder import alive
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.outermost import Outermost
from ddoctor.recorder.stepping import NEVER, Stepping, parameters

FIRST_LOOK, LAST_LOOK = 6, 14
"""By then all optimizers are there; a script that updates by hand has changed what it trains."""
COMPARED = 64
"""First numbers of each parameter that are compared."""


class Untrained:
    """Looks twice at the parameters of the outermost models."""

    def __init__(self, outermost: Outermost, stepping: Stepping) -> None:
        self._outermost, self._stepping = outermost, stepping
        self._before: dict[int, dict[str, torch.Tensor]] = {}
        self.names: dict[int, tuple[str, ...]] = {}
        """By the identity of the model: the parameters' names."""

    def look(self, number: int) -> int:
        """Between two steps, before gradients are zeroed. Returns the step of the next call."""
        if number < FIRST_LOOK:
            return FIRST_LOOK
        if not self._before and number < LAST_LOOK:
            self._note()
        elif number >= LAST_LOOK and self._before:
            self._compare()
            self._before = {}
        return LAST_LOOK if number < LAST_LOOK else NEVER

    @harmless
    def _note(self) -> None:
        found = self._of_no_optimizer()
        for model, rows in found.items():
            self._before[model] = {name: _begin(one).clone() for name, one in rows.items()}

    @harmless
    def _compare(self) -> None:
        for model, rows in self._of_no_optimizer().items():
            before = self._before.get(model, {})
            self.names[model] = tuple(
                name
                for name, one in rows.items()
                if name in before and torch.equal(_begin(one), before[name])
            )

    def _of_no_optimizer(self) -> dict[int, dict[str, nn.Parameter]]:
        """Of each model of which optimizers have a part: what gets gradients, and they lack.

        Where they have none of it, they keep copies of all, as in mixed precision.
        """
        found = self._without(self._stepping.optimizers)
        # All objects of a process take a tenth of a second.
        return self._without(alive.objects(Optimizer)) if found else {}

    def _without(self, optimizers: Iterable[Optimizer]) -> dict[int, dict[str, nn.Parameter]]:
        held = {id(one) for each in optimizers for one in parameters(each)}
        found = {}
        for model in list(self._outermost.roots.values()):
            every: dict[str, Any] = dict(model.named_parameters())
            sharded = any(hasattr(one, "placements") for one in every.values())
            lacking = {
                name: one
                for name, one in every.items()
                if id(one) not in held and one.requires_grad and one.grad is not None
            }
            if lacking and not sharded and any(id(one) in held for one in every.values()):
                found[id(model)] = lacking
        return found


def _begin(parameter: nn.Parameter) -> torch.Tensor:
    return parameter.detach().reshape(-1)[:COMPARED]
