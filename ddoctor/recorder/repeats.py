"""Layers that compute the same input twice in one step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from threading import get_ident
from time import perf_counter
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils.parametrize import ParametrizationList

from ddoctor.evidence.training import Repeat
from ddoctor.recorder import places, script, user_calls
from ddoctor.recorder.capture import capturing
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.outermost import tensors_among
from ddoctor.recorder.stepping import NEVER
from ddoctor.recorder.swaps import compiled
from ddoctor.recorder.tape import BACKWARD
from ddoctor.recorder.timeline import Timeline
from ddoctor.recorder.user_calls import Calls

LOOKS = (5, 9)
"""Steps whose layers are followed; what repeats in one of them alone is chance."""
MOST_CALLS = 20_000


@dataclass
class _Call:
    """A call of a layer: of a module that itself has parameters."""

    layer: int
    began: float
    given: Sequence[tuple[ref[Tensor], int]]
    """The tensors that it gets, with their versions."""
    calls: Calls
    """The user's calls that led there."""
    alone: bool
    """Whether it is a parametrization: its tensors are its parameters."""
    drops: bool
    """Whether dropout works in this process's modules so far."""
    first: int | None = None
    """The number of the call that computed the same; None: this one is the first."""
    ended: float = 0.0
    result: Tensor | None = None
    """The sum of its output."""

    def like(self, other: _Call) -> bool:
        """Whether it computes the same as an earlier call, from the same tensors."""
        rows = list(zip_longest(self.given, other.given))
        alike = (
            mine is not None
            and theirs is not None
            and mine[0]() is theirs[0]() is not None
            and mine[1] == theirs[1]
            for mine, theirs in rows
        )
        return self.layer == other.layer and bool(rows) and all(alike)


class Repeats:
    """Follows all layers for a few steps."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._handles: list[Any] = []
        self._open: list[_Call] = []
        self._calls: list[_Call] = []
        self._firsts: dict[tuple[int, ...], int] = {}
        """The number of the first call, by the layer and its tensors."""
        self._drops = False
        self._found: list[Repeat | None] = []

    def look(self, number: int) -> int:
        """Between two steps. Returns the step of the next call."""
        if self._handles:
            self._end()
        if number in LOOKS and not compiled():
            self._handles = [
                register_module_forward_pre_hook(self._enters),
                register_module_forward_hook(self._returns, always_call=True),
            ]
            return number + 1
        return next((one for one in LOOKS if one > number), NEVER)

    def told(self) -> Repeat | None:
        """What repeats in each followed step; the seconds are those of one step."""
        found = list(filter(None, self._found))
        if len(found) < len(LOOKS):
            return None
        return min(found, key=lambda one: one.seconds)

    def _end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._found.append(self._longest())
        self._open.clear()
        self._calls.clear()
        self._firsts.clear()

    @harmless
    def _enters(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        timeline = self._timeline
        self._drops |= isinstance(module, _DropoutNd) and module.p > 0 and module.training
        # Checkpointed blocks compute once more in the backward pass.
        backward = BACKWARD in (timeline.phase, *timeline.open)
        if not module._parameters or backward or get_ident() != timeline.busy:
            return
        if not (module.training and torch.is_grad_enabled()) or len(self._calls) >= MOST_CALLS:
            return
        tensors = [one for one in inputs if isinstance(one, Tensor)]
        alone = isinstance(module, ParametrizationList)
        if alone:
            # It gets no input, and makes a weight of its parameters.
            tensors = [one for one in module._parameters.values() if one is not None]
        given = [(ref(one), one._version) for one in tensors]
        way = _way(sys._getframe())
        call = _Call(id(module), perf_counter(), given, way, alone, self._drops)
        number = self._firsts.setdefault((id(module), *map(id, tensors)), len(self._calls))
        if number < len(self._calls):
            # Others may have come to the places of tensors that are gone.
            call.first = number if call.like(self._calls[number]) else None
        self._calls.append(call)
        self._open.append(call)

    @harmless
    def _returns(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._open and self._open[-1].layer == id(module):
            call = self._open.pop()
            call.ended = perf_counter()
            for tensor in tensors_among([output])[:1]:
                # The sum of a DTensor may be a collective.
                if not hasattr(tensor, "placements") and not capturing():
                    call.result = tensor.detach().sum()

    @harmless
    def _longest(self) -> Repeat | None:
        """The longest row of calls that follow a repeated one as they followed the first."""
        best = self._of_weights()
        over = 0
        for number, call in enumerate(self._calls):
            found = None
            if call.first is not None and number >= over and not call.alone:
                found, over = self._row(call.first, number)
            if found is not None and (best is None or found.seconds > best.seconds):
                best = found
        return best

    def _of_weights(self) -> Repeat | None:
        """All parametrizations that compute a weight again."""
        again = [
            one
            for one in self._calls
            if one.alone
            and one.first is not None
            and _equal(self._calls[one.first].result, one.result)
        ]
        if not again:
            return None
        calls = again[0].calls
        return Repeat(
            line=user_calls.frame(*calls[-1]) if calls else None,
            random=False,
            seconds=sum(one.ended - one.began for one in again),
            weights=len(again),
        )

    def _row(self, first: int, second: int) -> tuple[Repeat | None, int]:
        """A row, and the number of the call after it; None: the weights have changed meanwhile."""
        pairs = list(zip(self._calls[first:second], self._calls[second:], strict=False))
        same = _length([one.layer == other.layer for one, other in pairs])
        equal = _length([_equal(one.result, other.result) for one, other in pairs[:same]])
        if not equal:
            return None, second + 1
        random = equal < same and pairs[same - 1][1].drops
        length = same if random else equal
        ways = zip_longest(pairs[0][0].calls, pairs[0][1].calls)
        innermost = pairs[0][1].calls[-1] if pairs[0][1].calls else None
        apart = next((other for one, other in ways if one != other), innermost)
        repeat = Repeat(
            line=user_calls.frame(*apart) if apart is not None else None,
            random=random,
            seconds=pairs[length - 1][1].ended - pairs[0][1].began,
        )
        return repeat, second + length


def _way(frame: FrameType | None) -> Calls:
    """All of the user's calls, outermost first: those around a timed call as well."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None and frame.f_code.co_filename != script.__file__:
        if places.of_user(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found))


def _length(flags: Sequence[bool]) -> int:
    """How many hold from the first one on."""
    return next((place for place, holds in enumerate(flags) if not holds), len(flags))


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and bool((one == other).item())
