"""Gradients that are zeroed before any optimizer takes them, in the first inspected steps.

A backward pass may have to compute some of them on its way, as those of a discriminator that a
generator learns from. What comes after the last one that an optimizer takes is for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ddoctor.recorder.tape import COUNT
from ddoctor.recorder.timeline import Timeline

BACKWARDS = COUNT["backwards"]


@dataclass
class _Pass:
    """A backward pass: when it began, and when which gradients were there."""

    began: float
    ended: float = 0.0
    taken: float = 0.0
    """The last gradient that an optimizer took; 0: none."""
    dropped: dict[int, float] = field(default_factory=dict)


class Discarded:
    """Follows the gradients of steps in a row."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._passes: dict[int, _Pass] = {}
        self._before: list[_Pass] = []
        """Of the step before: what comes first in a step may be to zero the gradients."""
        self._pending: dict[int, tuple[_Pass, float]] = {}
        self._handle: Any = None
        self._replaced: list[tuple[Any, Any, Any]] = []
        self.steps = 0
        """Number of steps that count."""
        self.seconds = 0.0
        """Of their backward passes."""
        self.wasted: dict[int, list[float]] = {}
        """By the parameter that is the last one of a pass: seconds after the last one taken."""

    def begin(self) -> None:
        """Follow the next step."""
        self._handle = register_optimizer_step_pre_hook(self._take)
        for owner in (Optimizer, nn.Module):
            self._replace(owner)

    def came(self, parameter: int) -> None:
        """The gradient of the parameter with this identity is there."""
        now = perf_counter()
        turn = int(self._timeline.counts[BACKWARDS])
        found = self._passes.get(turn)
        if found is None:
            found = self._passes[turn] = _Pass(self._timeline.last)
        found.ended = now
        self._pending[parameter] = found, now

    def end(self) -> None:
        """Count the step before the one that is over."""
        self.remove()
        if self._before:
            self.steps += 1
        for one in self._before:
            self.seconds += one.ended - one.began
            last = max(one.dropped, key=lambda number: one.dropped[number], default=None)
            if last is not None and one.taken and one.dropped[last] > one.taken:
                self.wasted.setdefault(last, []).append(one.dropped[last] - one.taken)
        self._before = list(self._passes.values())
        self._passes.clear()

    def remove(self) -> None:
        """Remove all hooks."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for owner, ours, before in self._replaced:
            if owner.zero_grad is ours:
                owner.zero_grad = before
        self._replaced.clear()

    def _take(self, optimizer: Optimizer, *_: Any) -> None:
        for one in _of(optimizer):
            if (found := self._pending.pop(id(one), None)) is not None:
                turn, at = found
                turn.taken = max(turn.taken, at)

    def _drop(self, parameters: Iterable[Any]) -> None:
        for one in parameters:
            if (found := self._pending.pop(id(one), None)) is not None:
                turn, at = found
                turn.dropped[id(one)] = at

    def _replace(self, owner: Any) -> None:
        before = owner.zero_grad

        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            self._drop(_of(this) if isinstance(this, Optimizer) else this.parameters())
            return before(this, *args, **kwargs)

        owner.zero_grad = zero_grad
        self._replaced.append((owner, zero_grad, before))


def _of(optimizer: Optimizer) -> Iterable[Any]:
    return (one for group in optimizer.param_groups for one in group["params"])
