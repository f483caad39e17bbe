"""The events of one rank in its trace, and the phases of its steps on the host."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ddoctor.reading import trace_timeline
from ddoctor.reading.trace_events import Event, Trace
from ddoctor.reading.trace_timeline import Span

STEP = re.compile(r"ProfilerStep\s?#(\d{1,9})$")
OPTIMIZER = "Optimizer.step#"
LOADER = "enumerate(DataLoader)#"
ONE_PROCESS = "_SingleProcessDataLoaderIter"
# Their whole forward pass, and what FSDP2 does at its beginning.
FORWARDS = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")
PREPARES = "FSDP::root_pre_forward"
BACKWARD = "autograd::engine::evaluate_function"
AFTER_BACKWARD = ("FSDP::post_backward", "FSDP::root_post_backward")
# These only surround or start what other events show.
AROUND = (BACKWARD, "c10d::", "nccl:", "record_param_comms")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
OF_GPU = (*ON_GPU, "gpu_user_annotation")
LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, kw_only=True)
class Window:
    """One step."""

    number: int
    begin: float
    end: float


class RankEvents:
    """The events of one rank, by what they mean."""

    def __init__(self, trace: Trace) -> None:
        """Sort the events.

        Raises:
            ValueError: there are no steps in it.
        """
        self.timed = [one for one in trace.events if one.ph == "X"]
        self.windows, self.main = _windows(self.timed)
        marks = [one for one in self.timed if one.tid == self.main and one.cat not in OF_GPU]
        self.operators = [one for one in marks if one.cat == "cpu_op"]
        self.loaders = [one for one in marks if one.name.startswith(LOADER)]
        self.optimizers = [one for one in marks if one.name.startswith(OPTIMIZER)]
        self.forwards = [one for one in marks if one.name in FORWARDS]
        self.prepares = [one for one in marks if one.name == PREPARES]
        self.backwards = [
            one
            for one in self.timed
            if one.name.startswith((BACKWARD, *AFTER_BACKWARD)) and one.cat not in OF_GPU
        ]
        self.gpu = [one for one in self.timed if one.cat in ON_GPU and one.dur > 0]
        self.launches = {
            one.args.correlation: one
            for one in self.timed
            if one.cat in LAUNCHES and one.args is not None and one.args.correlation
        }

    @cached_property
    def host(self) -> list[Span]:
        """The phases of the step on the host."""
        found = [Span(one.ts, one.end, 3, "loader") for one in self.loaders]
        found += [Span(one.ts, one.end, 3, "optimizer") for one in self.optimizers]
        found += [Span(one.ts, one.end, 2, "forward") for one in self.forwards]
        blocks = self._backward_passes()
        found += [Span(begin, end, 1, "backward") for begin, end in blocks]
        if not self.forwards:
            found += [Span(*one, 0, "forward") for one in self._before(blocks)]
        return trace_timeline.divided(found)

    def _backward_passes(self) -> list[tuple[float, float]]:
        """From the first function of autograd to the last, between two other phases."""
        cuts = sorted(one.ts for one in (*self.loaders, *self.optimizers, *self.forwards))
        blocks: dict[int, tuple[float, float]] = {}
        for one in self.backwards:
            block = bisect_right(cuts, one.ts)
            begin, end = blocks.get(block, (one.ts, one.end))
            blocks[block] = min(begin, one.ts), max(end, one.end)
        return sorted(blocks.values())

    def _before(self, blocks: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
        """The time before each backward pass, since the phase before it."""
        ends = sorted(
            (
                *(one.end for one in (*self.loaders, *self.optimizers)),
                *(window.begin for window in self.windows),
                *(end for _, end in blocks),
            )
        )
        prepares = sorted(one.ts for one in self.prepares)
        for begin, _ in blocks:
            before = bisect_right(ends, begin) - 1
            if before >= 0:
                first = bisect_left(prepares, ends[before])
                prepared = prepares[first : first + 1]
                start = prepared[0] if prepared and prepared[0] < begin else ends[before]
                yield start, begin

    def window(self, moment: float) -> Window | None:
        """The step at a moment."""
        place = bisect_right(self.windows, moment, key=lambda one: one.begin) - 1
        found = self.windows[place] if place >= 0 else None
        return found if found is not None and moment < found.end else None

    def within(self, times: Sequence[tuple[float, float]]) -> Iterator[tuple[int, float, float]]:
        """The parts of these times that are in a step, with the number of the step."""
        for begin, end in times:
            first = bisect_right(self.windows, begin, key=lambda one: one.end)
            last = bisect_left(self.windows, end, key=lambda one: one.begin)
            for one in self.windows[first:last]:
                yield one.number, max(begin, one.begin), min(end, one.end)

    def launched(self, one: Event) -> Event | None:
        """The host's call that launched it."""
        return self.launches.get(one.args.correlation) if one.args is not None else None


def _windows(timed: Sequence[Event]) -> tuple[list[Window], object]:
    """The steps, and the thread that makes them: of the profiler, or between optimizer steps."""
    marked = [
        (int(step[1]), one)
        for one in timed
        if one.name.startswith("ProfilerStep")
        and one.cat in ("user_annotation", "cpu_op")
        and (step := STEP.match(one.name))
    ]
    if marked:
        main = marked[0][1].tid
        rows = sorted((one.ts, one.end, number) for number, one in marked if one.tid == main)
    else:
        ended = [one for one in timed if one.name.startswith(OPTIMIZER) and "gpu" not in one.cat]
        main = ended[0].tid if ended else 0
        ends = sorted(one.end for one in ended if one.tid == main)
        rows = [(*one, number) for number, one in enumerate(pairwise(ends), 1)]
    last = float("-inf")
    windows: list[Window] = []
    for begin, end, number in rows:
        if begin >= last and end > begin and number not in {one.number for one in windows[-1:]}:
            windows.append(Window(number=number, begin=begin, end=end))
            last = end
    if not windows:
        raise ValueError(
            "a trace without steps: call step() of the profiler after each, and give its schedule "
            "repeat=1, or the next cycle empties what is exported at the end"
        )
    return windows, main
