"""Optimizers that the script makes for one step each, with the line that makes them."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from ddoctor.evidence.frames import Frame
from ddoctor.recorder import user_calls
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.stepping import NEVER, Stepping
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.user_calls import Calls

LOOK = 6
"""By then as many optimizers were made as show more than chance."""


class Remade:
    """Looks once, between two steps, and then at the next optimizer that is made."""

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = stepping
        self._keeps = False
        self._calls: Calls = ()

    @property
    def found(self) -> bool:
        """Whether each of them lost what it had computed of its gradients."""
        return self._keeps and self._stepping.made_each_step

    def line(self) -> Frame | None:
        """The user's innermost line that makes them; None: not found, or not known."""
        return user_calls.frame(*self._calls[-1]) if self.found and self._calls else None

    def look(self, number: int) -> int:
        """Between two steps. Returns the step of the next call."""
        if number < LOOK:
            return LOOK
        if self._stepping.made_each_step:
            self._keeps = any(map(_keeps, self._stepping.optimizers))
            make: Any = Optimizer.__init__

            @replaces(Optimizer, "__init__")
            def made(this: Optimizer, *args: Any, **kwargs: Any) -> None:
                if not self._calls:
                    self._note()
                make(this, *args, **kwargs)

        return NEVER

    @harmless
    def _note(self) -> None:
        self._calls = user_calls.calls(sys._getframe())


def _keeps(optimizer: Optimizer) -> bool:
    """Whether it keeps tensors from step to step, besides the number of steps."""
    return any(
        isinstance(value, torch.Tensor)
        for state in list(optimizer.state.values())
        for name, value in list(state.items())
        if name != "step"
    )
