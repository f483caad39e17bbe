"""The steps of one rank in its trace: what each moment was spent on, and its collectives.

On a CPU, a moment belongs to what the main thread does; it is in a collective if it runs no
operator until that collective ends. On a GPU, a moment belongs to the kernel that runs, by
where the host launched it. Collectives and copies count while no kernel runs (exposed
communication, as in HolisticTraceAnalysis), and what the host does while the GPU has nothing to do.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from ddoctor.reading import trace_events, trace_timeline
from ddoctor.reading.trace_events import Event
from ddoctor.reading.trace_host import AROUND, RankEvents, Window
from ddoctor.reading.trace_timeline import Span

GLOO, STARTS = "gloo:", "c10d::"
UNKNOWN = "unknown"
# A collective lasts for thousands of operators; the last pauses in it are the ones to look at.
MOST_PAUSES = 64
SYMBOL = re.compile(r"Backward\d+$")
POINT_TO_POINT = ("send", "recv", "SendRecv")
KERNEL, COLLECTIVE, COPY, HOST, BESIDE = 5, 4, 3, 2, 1
"""Weights of what happens at the same time; the last two are on the host."""
REST = "rest"


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One call, on one rank; times in microseconds."""

    step: int
    """Number of its step."""
    kind: tuple[str, ...]
    """Operation, group, its members and size: the same for the same call on all its ranks."""
    begin: float
    end: float
    members: int
    """Number of ranks of its group; 0: not known."""
    bytes: int | None
    by_script: bool
    """Whether it was called outside the model, its backward pass and the optimizer."""
    exposed: list[tuple[float, float]] = field(default_factory=list)
    """When nothing else ran."""


@dataclass(kw_only=True)
class Gap:
    """A time in which the GPU has nothing to do."""

    step: int
    """Number of the step in which it begins."""
    begin: float
    end: float
    seconds: float
    """Without the part in which the host is in its loader."""


class RankTimeline:
    """What one rank spent its steps on."""

    def __init__(self, events: RankEvents) -> None:
        self.collectives: list[Collective] = []
        self.seconds: dict[int, dict[str, float]] = {
            one.number: defaultdict(float) for one in events.windows
        }
        """By number of the step and name of the phase, without collectives."""
        self.numbers = _numbers(events)
        """By number of the step: numbers in the inputs of all operators of the forward pass."""
        self.idle: list[Gap] = []
        spans = [Span(one.begin, one.end, BESIDE, REST) for one in events.windows]
        spans += [one._replace(weight=HOST) for one in events.host]
        spans += self._on_gpu(events) if events.gpu else self._by_gloo(events)
        for one in trace_timeline.divided(spans):
            self._count(one, events)

    def _count(self, one: Span, events: RankEvents) -> None:
        if isinstance(one.label, int):
            self.collectives[one.label].exposed.append((one.begin, one.end))
            return
        for step, begin, end in events.within([(one.begin, one.end)]):
            self.seconds[step][one.label] += (end - begin) / 1e6
            if events.gpu and one.weight <= HOST:
                self._idles(step, begin, end, one.label)

    def _idles(self, step: int, begin: float, end: float, phase: str) -> None:
        own = 0.0 if phase == "loader" else (end - begin) / 1e6
        last = self.idle[-1] if self.idle else None
        if last is not None and last.end == begin:
            last.end, last.seconds = end, last.seconds + own
        else:
            self.idle.append(Gap(step=step, begin=begin, end=end, seconds=own))

    def _on_gpu(self, events: RankEvents) -> Iterator[Span]:
        for one in events.gpu:
            launch = events.launched(one)
            moment = launch.ts if launch is not None else one.ts
            phase = trace_timeline.at(events.host, moment)
            if one.cat == "kernel" and "nccl" in one.name[:20].lower():
                window = events.window(moment)
                if window is not None:
                    self._add(one, window, phase)
                    yield Span(one.ts, one.end, COLLECTIVE, len(self.collectives) - 1)
            elif one.cat == "gpu_memcpy" and "HtoD" in one.name:
                yield Span(one.ts, one.end, COPY, "to-device")
            else:
                yield Span(
                    one.ts, one.end, KERNEL, str(phase) if phase not in (None, "loader") else REST
                )

    def _by_gloo(self, events: RankEvents) -> Iterator[Span]:
        """The time from which the main thread runs nothing until a collective ends."""
        busy = [
            (one.ts, one.end)
            for one in events.operators
            if not one.name.startswith(AROUND) and not SYMBOL.search(one.name)
        ]
        busy += [(one.ts, one.end) for one in events.loaders]
        free = trace_timeline.gaps(busy)
        calls = [one for one in events.timed if one.name.startswith(GLOO)]
        starts = [one for one in events.operators if one.name.startswith(STARTS)]
        # The threads of gloo take the calls in order, and name no call of the main thread.
        paired = len(starts) == len(calls)
        by_time = (sorted(ones, key=lambda one: one.ts) for ones in (calls, starts))
        for one, start in zip_longest(*by_time):
            if one is None:
                break
            moment = start.ts if paired and start is not None else one.ts
            window = events.window(moment)
            if window is None:
                continue
            phase = trace_timeline.at(events.host, moment) if paired else UNKNOWN
            self._add(one, window, phase)
            for begin, end in _waited(one, free):
                yield Span(begin, end, COLLECTIVE, len(self.collectives) - 1)

    def _add(self, one: Event, window: Window, phase: object) -> None:
        arguments = one.args
        size = trace_events.size(arguments)
        kind: tuple[str, ...] = (one.name.partition("(")[0],)
        if arguments is not None and arguments.collective:
            kind = (arguments.collective, arguments.group, str(arguments.members))
        self.collectives.append(
            Collective(
                step=window.number,
                kind=kind if _is_point_to_point(kind) else (*kind, str(size)),
                begin=one.ts,
                end=one.end,
                members=arguments.size if arguments is not None else 0,
                bytes=size,
                by_script=phase is None,
            )
        )


def _waited(call: Event, free: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """When the main thread ran nothing until this call ended; the thread of gloo may tell it late.

    Elsewhere it runs nothing for a moment between two operators.
    """
    last = bisect_left(free, call.end, key=lambda one: one[0])
    for begin, end in reversed(free[max(0, last - MOST_PAUSES) : last]):
        paused, resumed = max(begin, call.ts), min(end, call.end)
        if resumed - paused >= max(call.end - resumed, 0.0) and resumed > paused:
            yield paused, resumed


def _numbers(events: RankEvents) -> dict[int, int]:
    operators = sorted(events.operators, key=lambda one: one.ts)
    found: dict[int, int] = defaultdict(int)
    for span in events.host:
        window = events.window(span.begin) if span.label == "forward" else None
        if window is not None:
            first = bisect_left(operators, span.begin, key=lambda one: one.ts)
            last = bisect_left(operators, span.end, key=lambda one: one.ts)
            found[window.number] += sum(
                trace_events.numbers(one.args) for one in operators[first:last]
            )
    return found


def _is_point_to_point(kind: Sequence[str]) -> bool:
    return any(word in kind[0] for word in POINT_TO_POINT)
