"""Why the GPU of a rank has nothing to do, by its trace: who waits for whom."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ddoctor.evidence.frames import Frame
from ddoctor.reading.stacks import of_user
from ddoctor.reading.trace_events import Event
from ddoctor.reading.trace_host import AROUND, RankEvents
from ddoctor.reading.trace_ranks import Gap, RankTimeline
from ddoctor.reading.trace_timeline import gaps

# As torch's profiler names Python functions.
FUNCTION = re.compile(r"^(?P<file>[^<].*)\((?P<line>\d{1,9})\): (?P<function>.+)$")
AROUND_CALLS = ("python_function", "cpu_op")
DEEPEST = 1000
"""Functions and operators around a call: as many as Python's own limit of recursion."""
NEVER = float("-inf")
SYNCS = re.compile(r"^(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize")
PAGEABLE = "Memcpy HtoD (Pageable"


@dataclass(frozen=True)
class Place:
    """Where the host waits for the GPU."""

    operator: str
    call: str
    line: Frame | None


@dataclass
class Waits:
    """Those of one place in one step; seconds."""

    calls: int = 0
    blocked: float = 0.0
    idle: float = 0.0


@dataclass
class GpuStep:
    """What one step cost, in seconds."""

    kernels: int = 0
    late_launch: float = 0.0
    copies: int = 0
    copied_bytes: int = 0
    copying: float = 0.0
    """Of copies from pageable memory, with what the GPU then lacks."""
    syncs: dict[Place, Waits] = field(default_factory=lambda: defaultdict(Waits))


def by_step(events: RankEvents, timeline: RankTimeline) -> dict[int, GpuStep]:
    """What the GPU did not do in each step, by the number of the step."""
    found: dict[int, GpuStep] = defaultdict(GpuStep)
    copying: dict[int, Event] = {}
    free = _Free(events.gpu)
    for one in events.gpu:
        launch = events.launched(one)
        window = events.window(launch.ts if launch is not None else one.ts)
        if window is None:
            continue
        step = found[window.number]
        if one.cat == "kernel":
            step.kernels += 1
        elif one.name.startswith(PAGEABLE):
            step.copies += 1
            step.copied_bytes += one.args.bytes if one.args is not None else 0
            step.copying += free.within(one)
            if launch is not None:
                copying[id(launch)] = one
    waits = _waits(events, copying, found)
    _divide(timeline.idle, waits, events, found)
    return found


class _Free:
    """The times in which no kernel runs."""

    def __init__(self, gpu: Sequence[Event]) -> None:
        first = min((one.ts for one in gpu), default=0.0)
        last = max((one.end for one in gpu), default=0.0)
        between = [
            (max(first, begin), min(last, end))
            for begin, end in gaps((one.ts, one.end) for one in gpu if one.cat == "kernel")
        ]
        self._begins = [begin for begin, _ in between]
        self._lengths = [end - begin for begin, end in between]
        self._before = [0.0, *accumulate(self._lengths)]

    def within(self, one: Event) -> float:
        """Seconds of an event in which no kernel runs."""
        return max(0.0, self._until(one.end) - self._until(one.ts)) / 1e6

    def _until(self, moment: float) -> float:
        place = bisect_left(self._begins, moment)
        if not place:
            return 0.0
        last = min(moment - self._begins[place - 1], self._lengths[place - 1])
        return self._before[place - 1] + last


@dataclass(frozen=True)
class _Wait:
    """One synchronising call; place None: it waits for a copy to the GPU."""

    begin: float
    end: float
    place: Place | None


def _waits(events: RankEvents, copying: dict[int, Event], found: dict[int, GpuStep]) -> list[_Wait]:
    """The synchronising calls of the main thread, in order."""
    waits: list[_Wait] = []
    started = {id(events.launched(one)) for one in events.gpu}
    open_: list[tuple[Event, Frame | None]] = []
    last: Event | None = None
    for one in _of_main(events, started):
        while open_ and open_[-1][0].end <= one.ts:
            open_.pop()
        if one.cat in AROUND_CALLS and len(open_) >= DEEPEST:
            continue
        if one.cat == "python_function":
            if (frame := _frame(one.name)) is not None:
                open_.append((one, frame))
        elif one.cat == "cpu_op":
            open_.append((one, None))
        elif SYNCS.match(one.name):
            window = events.window(one.ts)
            if window is not None:
                copies = last is not None and id(last) in copying
                place = None if copies else _place(one, open_)
                waits.append(_Wait(one.ts, one.end, place))
                if place is not None:
                    row = found[window.number].syncs[place]
                    row.calls += 1
                    row.blocked += max(0.0, one.dur) / 1e6
        else:
            last = one
    return waits


def _of_main(events: RankEvents, started: set[int]) -> Iterator[Event]:
    """What tells where the main thread is, those around others first."""
    mine = (
        one
        for one in events.timed
        if one.tid == events.main
        and (one.cat in AROUND_CALLS or id(one) in started or SYNCS.match(one.name))
    )
    yield from sorted(mine, key=lambda one: (one.ts, -one.dur))


def _place(sync: Event, open_: list[tuple[Event, Frame | None]]) -> Place:
    operators = (one.name for one, frame in open_ if frame is None)
    lines = (frame for _, frame in reversed(open_) if frame is not None)
    return Place(
        operator=next((name for name in operators if not name.startswith(AROUND)), ""),
        call=sync.name,
        line=next(lines, None),
    )


def _frame(name: str) -> Frame | None:
    """The user's function of an event; None: a library's."""
    match = FUNCTION.match(name)
    if match is None or not of_user(match["file"]):
        return None
    return Frame(
        file=match["file"], line=int(match["line"]), function=match["function"], of_user=True
    )


def _divide(
    idle: list[Gap], waits: list[_Wait], events: RankEvents, found: dict[int, GpuStep]
) -> None:
    """Assign the time in which the GPU has nothing to do to what it waits for.

    A call waited for the GPU if it began while the GPU worked, and ended after that. The launch
    of the next kernel came too late if the GPU had nothing to do by then: the rule of
    HolisticTraceAnalysis (``IdleTimeType.HOST_WAIT``).
    """
    activities = sorted(
        (one.ts, launch.ts if (launch := events.launched(one)) is not None else NEVER)
        for one in events.gpu
    )
    for gap in idle:
        first = bisect_left(waits, gap.begin, key=lambda one: one.end)
        wait = waits[first] if first < len(waits) else None
        step = found[gap.step]
        if wait is not None and wait.begin <= gap.begin and wait.end <= gap.end:
            if wait.place is None:
                step.copying += gap.seconds
            else:
                step.syncs[wait.place].idle += gap.seconds
            continue
        after = bisect_left(activities, (gap.end, NEVER))
        if after < len(activities) and activities[after][1] > gap.begin:
            step.late_launch += gap.seconds
