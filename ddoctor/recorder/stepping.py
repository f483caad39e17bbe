"""The definition of a step: from one step of the most frequent optimizer (anchor) to its next.

A script that updates its parameters by itself has no optimizer. There a step ends with a backward
pass: the first one after each batch, or each one where no DataLoader gives batches.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import get_ident
from types import FrameType
from typing import Any, NoReturn
from weakref import ref

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from ddoctor.recorder import alive
from ddoctor.recorder.capture import capturing
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.tape import COUNT, LEAVING, OPTIMIZER, REST, STOP_AT, WORLD
from ddoctor.recorder.timeline import RESTING, Timeline

# The first that comes round again is one that steps in every iteration.
ANCHOR_STEPS = 2
# Training goes on with another optimizer alone, say in a second stage.
OTHERS_STEPS = 5
# By then chance made none of them, nor the beginning of a stage.
MADE = 4
MOST_PLACES = 256
# So many passes and no optimizer, not even one that waits for the end of an accumulation.
PASSES = 4
NEVER = sys.maxsize
"""The step of a call that is not needed again."""
# Private to torch, and so perhaps gone one day.
_profiler_enabled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", bool)
OPTIMIZER_STEPS, PROFILED = COUNT["optimizer_steps"], COUNT["profiled"]

# What calls the hooks, around the step of every optimizer.
HOOKED = getattr(Optimizer.profile_hook_step(lambda: None), "__code__")  # noqa: B009


class Stopped(SystemExit):
    """ddoctor has seen enough; not an error, and not caught by ``except Exception``."""


@dataclass(slots=True)
class _Turn:
    """What is called between two steps, and the step from which it is due."""

    call: Callable[[int], int]
    due: int = 0


@dataclass
class _Place:
    """What optimizers of the same parameters share, one after another."""

    latest: Callable[[], Optimizer | None]
    made: int = 0
    steps: int = 0


class Stepping:
    """Counts the optimizers' steps, and ends the run at the agreed step."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.classes: Counter[str] = Counter()
        self._anchor: _Place | None = None
        self._since_anchor: Counter[int] = Counter()
        self._depths: list[int] = []
        self._all = 0
        """Steps of all optimizers."""
        self._places: MutableMapping[Optimizer, _Place] = WeakIdKeyDictionary()
        """Of the optimizers that have stepped."""
        self._every: list[_Place] = []
        """Also those of optimizers that the script holds no more; the first ones."""
        self._by_parameter: MutableMapping[torch.Tensor, dict[tuple[int, ...], _Place]] = (
            WeakIdKeyDictionary()
        )
        """The same, by the first of their parameters and the identities of all."""
        self.at_first: list[Callable[[Optimizer], None]] = []
        """Called before the first step of each optimizer with which the training begins."""
        self.at_optimizer: list[Callable[[Optimizer], None]] = []
        """Called at each optimizer that steps repeatedly, the anchor first."""
        self.at_passes: list[Callable[[], None]] = []
        """Called where passes are found to be steps."""
        self._passes = 0
        self._by_hand: bool | None = None
        """Whether the script has no optimizer; None: not known yet."""
        self._batches = 0
        """Batches that were taken until the last pass."""
        self._turns: list[_Turn] = []
        self._due = 0
        """The earliest step from which one of them is due."""
        self.at_stop: list[Callable[[], None]] = []
        """Called before the run stops."""

    @property
    def optimizers(self) -> list[Optimizer]:
        """All optimizers that have stepped and that the script still holds."""
        return [one for one, place in list(self._places.items()) if place.latest() is one]

    @property
    def made_each_step(self) -> bool:
        """Whether some optimizer stepped only once, and so did all of these parameters since."""
        return any(place.made == place.steps >= MADE for place in list(self._every))

    def between_steps(self, *calls: Callable[[int], int]) -> None:
        """Call each of them with the number of the next step; it returns the step of its next call,
        or NEVER."""
        self._turns += map(_Turn, calls)
        self.call_all()

    def call_all(self) -> None:
        """Call each of them before the next step, whatever it has returned."""
        for turn in self._turns:
            turn.due = 0
        self._due = 0

    def install(self) -> None:
        """Hook into all optimizers, and into the gradient scaler, which may skip their steps."""
        self._timeline.swaps.hook(register_optimizer_step_pre_hook, self._before)
        register_optimizer_step_post_hook(self._after)
        step: Any = torch.amp.GradScaler.step

        @replaces(torch.amp.GradScaler, "step")
        def scaled_step(this: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = self._all
            result = step(this, optimizer, *args, **kwargs)
            # An overflow: the optimizer was not called, and yet the step is over.
            if self._timeline.here() and self._all == before:
                self._count(optimizer)
            return result

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        timeline = self._timeline
        if is_dynamo_compiling() or get_ident() != timeline.busy:
            return None
        if self._depths:
            self._forget(_open_steps() - 1)
        if not timeline.done and optimizer not in self._places:
            _tell(self.at_first, optimizer)
        self._depths.append(len(timeline.open))
        timeline.enter(OPTIMIZER)
        # The optimizer itself is the first argument.
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._apart(args[1]), *args[2:]), kwargs
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._apart(closure)}
        return None

    def _apart(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure whose time is not the optimizer's: it is the loop's, with its passes."""

        @wraps(closure)
        def run() -> Any:
            timeline = self._timeline
            depth = len(timeline.open)
            timeline.enter(REST)
            try:
                return closure()
            finally:
                came = timeline.came
                timeline.unwind(depth)
                timeline.came = came

        return run

    def _forget(self, still_open: int) -> None:
        """Drop steps that raised: they never ended."""
        if still_open < len(self._depths):
            self._timeline.unwind(self._depths[still_open])
            del self._depths[still_open:]

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        timeline = self._timeline
        if is_dynamo_compiling() or get_ident() != timeline.main:
            return
        if timeline.busy == RESTING and self._passes_anchor(optimizer):
            return
        if self._depths:
            timeline.unwind(self._depths.pop())
        # One that wraps another: only the outer one counts.
        if not self._depths:
            self._count(optimizer)

    def _passes_anchor(self, optimizer: Optimizer) -> bool:
        """Count a step of the anchor while nothing is recorded; False: it is none.

        With few calls: each takes microseconds after a step has emptied the caches.
        """
        anchor, timeline = self._anchor, self._timeline
        if self._depths or self._since_anchor or anchor is None or capturing():
            return False
        if anchor.latest() is not optimizer:
            return False
        self._all += 1
        anchor.steps += 1
        if timeline.pass_step() >= self._due:
            self._take_turns(timeline.done)
        if timeline.head[STOP_AT]:
            self._stop_in_time()
        return True

    def _count(self, optimizer: Optimizer) -> None:
        if capturing():
            return
        self._all += 1
        timeline = self._timeline
        if timeline.busy == timeline.main:
            timeline.counts[OPTIMIZER_STEPS] += 1
            self.classes[type(optimizer).__name__] += 1
        anchor = self._anchor
        place = anchor
        if anchor is None or anchor.latest() is not optimizer:
            place = self._places.get(optimizer) or self._find_place(optimizer)
        if place is None:
            return
        place.steps += 1
        if place is anchor:
            if self._since_anchor:
                self._since_anchor.clear()
        elif not self._becomes_anchor(place, anchor is None or anchor.latest() is None):
            return
        self._end_step()

    @harmless
    def _find_place(self, optimizer: Optimizer) -> _Place:
        """Of an optimizer that has not stepped before."""
        every = [*parameters(optimizer)]
        place = _Place(ref(optimizer))
        if every:
            same = self._by_parameter.setdefault(every[0], {})
            place = same.setdefault(tuple(map(id, every)), place)
        if not place.made and len(self._every) < MOST_PLACES:
            self._every.append(place)
        place.latest = ref(optimizer)
        place.made += 1
        self._places[optimizer] = place
        return place

    def passed(self) -> None:
        """A backward pass that ends an accumulation, if there is any, is over."""
        if capturing():
            return
        batches = self._timeline.batches
        if self._all or self._by_hand is False or (batches and batches == self._batches):
            return
        self._batches = batches
        self._passes += 1
        if self._passes >= PASSES and self._without_optimizer():
            self._end_step()

    @harmless
    def _without_optimizer(self) -> bool:
        if self._by_hand is None:
            self._by_hand = not alive.objects(Optimizer)
            if self._by_hand:
                # Nothing but the hook of the pass itself counts these steps.
                self._timeline.may_rest = False
                self._tell_world()
                _tell(self.at_passes)
        return self._by_hand

    def _end_step(self) -> None:
        timeline = self._timeline
        if timeline.busy == timeline.main:
            timeline.counts[PROFILED] = float(_profiler_enabled())
        timeline.end_step()
        if timeline.done >= self._due:
            self._take_turns(timeline.done)
        if timeline.head[STOP_AT]:
            self._stop_in_time()

    def _stop_in_time(self) -> None:
        if self._timeline.done >= self._timeline.head[STOP_AT]:
            self.stop()

    def _take_turns(self, number: int) -> None:
        for turn in self._turns:
            if number >= turn.due:
                # One that failed is tried again.
                turn.due = harmless(turn.call)(number) or number + 1
        self._due = min((turn.due for turn in self._turns), default=NEVER)

    @harmless
    def _becomes_anchor(self, place: _Place, alone: bool) -> bool:
        if place.steps == ANCHOR_STEPS:
            _tell(self.at_optimizer, place.latest())
            self.call_all()
        self._since_anchor[id(place)] += 1
        if self._since_anchor[id(place)] >= (ANCHOR_STEPS if alone else OTHERS_STEPS):
            self._anchor = place
            self._since_anchor.clear()
            self._tell_world()
            return True
        return False

    def _tell_world(self) -> None:
        grouped = torch.distributed.is_initialized()
        self._timeline.head[WORLD] = torch.distributed.get_world_size() if grouped else 1

    def stop(self) -> NoReturn:
        """End the script."""
        # Again and again where the script catches it.
        if not self._timeline.head[LEAVING]:
            self._timeline.head[LEAVING] = 1
            _tell(self.at_stop)
        raise Stopped(0)


def _tell(calls: Sequence[Callable[..., Any]], *args: Any) -> None:
    for call in calls:
        harmless(call)(*args)


def _open_steps() -> int:
    """Number of optimizers inside of a step, by the stack."""
    frame: FrameType | None = sys._getframe()
    found = 0
    while frame is not None:
        found += frame.f_code is HOOKED
        frame = frame.f_back
    return found


def parameters(optimizer: Optimizer) -> Iterator[Any]:
    """The parameters of an optimizer."""
    return (one for group in optimizer.param_groups for one in group["params"])
