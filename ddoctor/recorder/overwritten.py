"""Whether an evaluation leaves the weights as the last step of the training left them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddoctor.recorder.capture import capturing
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.outermost import Outermost
from ddoctor.recorder.stepping import NEVER
from ddoctor.recorder.timeline import Timeline

COMPARED = 64
"""First numbers of a parameter that are compared."""
LAST_STEP = 300
"""The steps after it are not followed: each costs a copy."""
BETWEEN = 8
"""Steps without an evaluation that are compared as well, after each one, and at the beginning."""
MOST = 16
"""Evaluations: each comparison waits for the GPU."""


class Overwritten:
    """Compares weights after a step with those of the next forward pass of the training."""

    def __init__(self, timeline: Timeline, outermost: Outermost) -> None:
        self._timeline, self._outermost = timeline, outermost
        self._kept: tuple[int, Any, Any] | None = None
        """The number of steps, a parameter and a copy of its first numbers."""
        self._left = BETWEEN
        self.evaluations = self.changed = 0
        """Evaluations between two steps, and those after which the weights were others."""
        self.changed_otherwise = 0
        """Steps without an evaluation after which they were."""
        outermost.at_training = self._begins

    def look(self, number: int) -> int:
        """Between two steps. Returns the step of the next call."""
        if number > LAST_STEP or self.evaluations >= MOST:
            self._kept, self._outermost.at_training = None, None
            return NEVER
        self._keep(number)
        return number + 1

    @harmless
    def _keep(self, number: int) -> None:
        self._kept = None
        parameter = next(map(_trained, list(self._outermost.roots.values())), None)
        if parameter is not None and not capturing():
            self._kept = number, parameter, _begin(parameter).clone()

    @harmless
    def _begins(self, evaluated: bool) -> None:
        """A forward pass of the training begins."""
        kept, self._kept = self._kept, None
        if kept is None or kept[0] != self._timeline.done or capturing():
            return
        if evaluated:
            self._left = BETWEEN
        elif not self._left:
            return
        else:
            self._left -= 1
        changed = not torch.equal(_begin(kept[1]), kept[2])
        if evaluated:
            self.evaluations += 1
            self.changed += changed
        else:
            self.changed_otherwise += changed


def _trained(model: nn.Module) -> nn.Parameter | None:
    """A parameter that is trained; None: it is divided among the ranks."""
    parameters: Any = model.parameters()
    found = next((one for one in parameters if one.requires_grad), None)
    return None if found is None or hasattr(found, "placements") else found


def _begin(parameter: nn.Parameter) -> torch.Tensor:
    return parameter.detach().reshape(-1)[:COMPARED]
