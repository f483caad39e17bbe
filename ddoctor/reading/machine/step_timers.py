"""The timers that DeepSpeed (`wall_clock_breakdown`) and Megatron print in each step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ddoctor.evidence.printed_figures import PhaseTimes, PrintedTimes
from ddoctor.reading.machine.kind import Kind

MILLISECONDS = r"\d{1,12}\.\d{1,6}"
# deepspeed/utils/timer.py, and Megatron until 2022: all timers in a line.
LINE = re.compile(r"^.{0,400}?\btime \(ms\) \| ")
IN_LINE = re.compile(rf"\| (?P<name>[A-Za-z][\w -]{{1,60}}): (?P<most>{MILLISECONDS})")
# megatron/core/timers.py: a line for each, with the least and the most of all ranks, or the most.
ROW = re.compile(
    rf"^\s{{0,12}}(?P<name>[a-z][a-z/-]{{2,60}}) \.{{2,60}}: "
    rf"(?:\((?P<least>{MILLISECONDS}), (?P<among>{MILLISECONDS})\)|(?P<most>{MILLISECONDS}))$"
)

# The timer of a whole step first, that of a micro-batch where there is none.
FORWARD = ("forward", "fwd", "forward-compute", "forward_microstep", "fwd_microstep")
BACKWARD = ("backward", "bwd", "backward-compute", "backward_microstep", "bwd_microstep")
BOTH = ("forward-backward",)
STEP = ("optimizer", "step", "step_microstep")
LOADER = ("batch-generator", "batch generator")
# DeepSpeed's pipelines load a batch before the forward pass, Megatron within it.
LOADED_BEFORE = ("batch_input",)
REDUCED = (
    *("all-grads-sync", "grads-all-reduce", "grads-reduce-scatter", "backward-params-all-reduce"),
    *("backward_allreduce", "bwd_allreduce", "backward_allreduce_microstep"),
    "bwd_allreduce_microstep",
)
# DeepSpeed gathers the parameters within its step.
GATHERED = ("optimizer_allgather",)
WHOLE = ("interval-time",)
MILLI = 1e-3


def _read(lines: Sequence[str]) -> Iterator[PrintedTimes]:
    least: dict[str, list[float]] = defaultdict(list)
    most: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for name, low, high in _timers(line):
            least[name].append(low)
            most[name].append(high)
    forward, backward = _median(most, FORWARD), _median(most, BACKWARD)
    passes = _median(most, BOTH)
    if passes is None and forward is not None and backward is not None:
        passes = forward + backward
    if passes is None:
        return
    step, before = _median(most, STEP), _median(most, LOADED_BEFORE)
    # Who comes first waits for the others in it: the least is the transfer.
    reduced, gathered = _median(least, REDUCED), _median(least, GATHERED)
    exchanged = [one for one in (reduced, gathered) if one is not None]
    # Megatron may print what is left of an interval after it was reset.
    whole = max(_median(most, WHOLE) or 0.0, passes + (step or 0.0) + (before or 0.0))
    yield PrintedTimes(
        tables=(
            PhaseTimes(
                tool="the timers of the training",
                count=len(_printed(most, (*BOTH, *FORWARD))),
                whole=whole,
                loader=_median(most, LOADER) if before is None else before,
                passes=passes,
                communication=sum(exchanged) if exchanged else None,
                optimizer=max(0.0, step - (gathered or 0.0)) if step is not None else None,
            ),
        )
    )


def _timers(line: str) -> Iterator[tuple[str, float, float]]:
    """Each timer of a line, with the least and the most seconds of the ranks."""
    found = ROW.match(line)
    if found is not None:
        high = found["among"] or found["most"]
        yield found["name"], float(found["least"] or high) * MILLI, float(high) * MILLI
        return
    start = LINE.match(line)
    for timer in IN_LINE.finditer(line, start.end() - 2) if start is not None else ():
        seconds = float(timer["most"]) * MILLI
        yield timer["name"], seconds, seconds


def _printed(timers: Mapping[str, Sequence[float]], names: Sequence[str]) -> Sequence[float]:
    """All times of the first of these timers that was printed."""
    return next((timers[name] for name in names if timers.get(name)), ())


def _median(timers: Mapping[str, Sequence[float]], names: Sequence[str]) -> float | None:
    """The median of the first of these timers that was printed; None: none was.

    The first steps load and compile, and one may save: neither changes it.
    """
    found = _printed(timers, names)
    return median(found) if found else None


KIND = Kind(
    name="timers of DeepSpeed or Megatron",
    holds=("time (ms) | ", "....: "),
    begins=re.compile(rf"{LINE.pattern}|{ROW.pattern}"),
    goes_on=re.compile(r"(?!)"),
    read=_read,
    scattered=True,
)
