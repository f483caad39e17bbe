"""Gradients that are zeroed before any optimizer takes them, of the first inspected steps.

A backward pass may have to compute some of them on its way, as those of a discriminator that a
generator learns from. What comes after the last one that an optimizer takes is for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ddoctor.recorder.stepping import parameters
from ddoctor.recorder.swaps import compiled
from ddoctor.recorder.timeline import Timeline

FEWEST = 2
"""Passes that show more than chance."""


@dataclass
class _Pass:
    """A backward pass: when it began, and when which gradients were there."""

    began: float
    ended: float = 0.0
    taken: float = 0.0
    """The last gradient that an optimizer took; 0: none."""
    dropped: dict[int, float] = field(default_factory=dict)

    @property
    def wasted(self) -> tuple[int, float] | None:
        """The parameter with the last gradient, and the seconds since the last one that is taken.

        None: nothing comes after that, or nothing is taken.
        """
        # A copy: another thread asks during the training.
        dropped = dict(self.dropped)
        last = max(dropped, key=lambda one: dropped[one], default=None)
        if last is None or not 0 < self.taken < dropped[last]:
            return None
        return last, dropped[last] - self.taken


class Discarded:
    """Follows the gradients of some steps, until each of them is taken or zeroed."""

    def __init__(self, timeline: Timeline, turn: Callable[[], object]) -> None:
        """``turn``: names the backward pass that runs."""
        self._timeline, self._turn = timeline, turn
        self._passes: dict[object, _Pass] = {}
        self._pending: dict[int, list[tuple[_Pass, float]]] = {}
        """Of several passes, where a parameter adds them up."""
        self._handle: Any = None
        self._replaced: list[tuple[Any, Any, Any]] = []

    def begin(self) -> None:
        """Follow the gradients that come from now on."""
        # What is compiled depends on the functions that it calls.
        if self._handle is None and not compiled():
            self._handle = register_optimizer_step_pre_hook(self._take)
            for owner in (Optimizer, nn.Module):
                self._replace(owner)

    def came(self, parameter: int) -> None:
        """The gradient of the parameter with this identity is there."""
        now, turn = perf_counter(), self._turn()
        found = self._passes.get(turn)
        if found is None:
            found = self._passes[turn] = _Pass(self._timeline.last)
        found.ended = now
        self._pending.setdefault(parameter, []).append((found, now))

    def remove(self) -> None:
        """Remove all hooks."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for owner, ours, before in self._replaced:
            if owner.zero_grad is ours:
                owner.zero_grad = before
        self._replaced.clear()

    def share(self, of_model: Callable[[int], bool]) -> float:
        """Return the share of the passes, 0 to 1, after the last gradient that is taken.

        Only those count that end with a parameter of the model.
        """
        passes = list(self._passes.values())
        ends = [wasted for one in passes if (wasted := one.wasted) and of_model(wasted[0])]
        whole = sum(one.ended - one.began for one in passes)
        if len(ends) < FEWEST or not whole:
            return 0.0
        return sum(seconds for _, seconds in ends) / whole

    def _take(self, optimizer: Optimizer, *more: Any) -> None:
        for turn, _, at in self._settled(parameters(optimizer)):
            turn.taken = max(turn.taken, at)

    def _settled(self, settled: Iterable[Any]) -> list[tuple[_Pass, int, float]]:
        """Return the gradients of these parameters of which nothing was known before."""
        if not self._pending:
            return []
        found = [(id(one), self._pending.pop(id(one), [])) for one in settled]
        return [(turn, number, at) for number, rows in found for turn, at in rows]

    def _replace(self, owner: Any) -> None:
        before = owner.zero_grad

        @wraps(before)
        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            zeroed = parameters(this) if isinstance(this, Optimizer) else this.parameters()
            for turn, number, at in self._settled(zeroed):
                turn.dropped[number] = at
            return before(this, *args, **kwargs)

        owner.zero_grad = zero_grad
        self._replaced.append((owner, zero_grad, before))
