"""Which rank the others wait for, in which part of its step, and what that costs.

Pure: recorded steps in, names out.

In synchronous training a step takes equally long on all ranks, and so does its backward; what
differs is a rank's own work before it comes to the collective. Each part of that is held against
the same part on the usual rank, step by step, so that noise which meets all ranks takes no part. A
part is paid for as a what-if tells (as in "Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI'25): the step as it was, less the step with this rank as fast as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, median_low
from typing import Literal

from ddoctor.analysis.derived import Derived
from ddoctor.analysis.work_imbalance import (
    COMPUTING,
    Rows,
    Workload,
    clock_of_cpu,
    on_cpu,
    spent,
    workload,
)
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import HotLine, Lines, RankSteps, Steps

Part = Literal["loading", "computing", "checkpoint", "evaluation", "gc", "rest"]

PARTS: Mapping[Part, tuple[str, ...]] = {
    "loading": ("loader", "to-device"),
    "computing": COMPUTING,
    "checkpoint": ("checkpoint",),
    "evaluation": ("evaluation",),
    "gc": ("gc",),
    "rest": ("rest",),
}
"""What the phases of a rank's own work belong to."""

WITH_THE_WORK = ("loading", "computing", "rest")
"""What takes longer with more tokens or samples."""

NOW_AND_THEN: tuple[Part, ...] = ("checkpoint", "evaluation", "gc", "rest")
"""What comes every so many steps: judged by its mean, where the others are by their median."""

ON_CPU: tuple[Part, ...] = ("computing", *NOW_AND_THEN)
"""What keeps a CPU busy."""

# A check that the change is at least 10 % is what took a published detector's false alarms away
# (GREYHOUND, ATC'25); 5 % between the GPUs of a node is normal (ml-engineering).
SLOWER_BY = 0.10
# Slowness is persistent (per-step p90 1.06 of a job's median, OSDI'25), so a few dozen steps show
# it, and fewer than ten do not.
ENOUGH_STEPS = 10
# A sound rank of two is the later one in half of the steps: 48 of 60 come by chance three times in
# a million (binomial), but noise lasts for more than a step. On two busy CPUs, where all steps took
# twice as long, a sound rank was later in 77 % of them, and one with 15 % more work in 80 %.
STEADY = 0.80
# Its CPU seconds told them apart in every step (of sound ranks they differed by 0.2 % of the step):
# where these say the same in nearly all steps, the clock may be disturbed in more of them.
SURE, STEADY_WHERE_SURE = 0.95, 0.60
# Below a slowdown of 1.04 ordinary noise wins (Holmes, NSDI'25).
NOTICEABLE = 0.04
# A neighbour on the same CPU comes and goes: the delay must be there from the beginning to the end.
STRETCHES = 3
# Of ranks that do not wait for each other each takes its own time.
TOGETHER = 0.90
# A line is the late rank's own where the others are met a quarter as often, or less.
OWN_LINE = 4.0
# Fewer looks than this may have met the line by chance.
ENOUGH_LOOKS = 3


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that is later than the usual one by a part of its step."""

    place: RankPlace
    part: Part
    phase: str
    """The one of the part's phases that it is latest in."""
    seconds: float
    """By which it is later, in the median step; of what comes now and then, the mean."""
    usual: float
    """Seconds of the whole part on the usual rank."""
    behind: int
    """In how many steps it was later."""
    steps: int
    on_cpu: float | None = None
    """Of these seconds, what its main thread's time on a CPU tells; None: not seen, or it works on
    a GPU."""
    cost: float = 0.0
    """The share of the step that is saved where it is as fast as the others, 0 to 1."""


def stragglers(
    steps: Steps, *, as_given: bool = False, by: float = SLOWER_BY
) -> tuple[Straggler, ...]:
    """The parts of ranks that hold the others up by this share of the step, the costliest first.

    What different amounts of work explain is left out, unless the steps are to be taken as they
    were given.
    """
    if not comparable(steps):
        return ()
    least = by * typical_step(steps)
    work = None if as_given else workload(steps)
    rows = {part: _spent_on(part, steps, work) for part in PARTS}
    more = {part: _more(one) for part, one in rows.items()}
    cpus = on_cpu(steps)
    found: dict[tuple[int, Part], Straggler] = {}
    for part, by_rank in more.items():
        more_on_cpu = _more_on_cpu(part, steps, work, more) if cpus and part in ON_CPU else ()
        for index, later in enumerate(by_rank):
            cpu = more_on_cpu[index] if more_on_cpu else ()
            behind = sum(second > 0 for second in later)
            usually: Callable[[Sequence[float]], float] = median
            seconds = _steady(later, cpu if part == "computing" else (), least)
            if not seconds and part in NOW_AND_THEN and recurs(later, least):
                behind = sum(second >= least for second in later)
                usually = fmean
                seconds = fmean(later)
            if seconds:
                found[index, part] = Straggler(
                    place=steps.ranks[index].place,
                    part=part,
                    phase=_latest(steps, index, PARTS[part]),
                    seconds=seconds,
                    usual=fmean(map(median_low, zip(*rows[part], strict=True))),
                    behind=behind,
                    steps=steps.count,
                    on_cpu=usually(cpu) if cpu else None,
                )
    paid = _paid(steps, {(index, part): more[part][index] for index, part in found})
    costly = (replace(one, cost=paid[key]) for key, one in found.items())
    enough = (one for one in costly if one.cost >= by / 2)
    return tuple(sorted(enough, key=lambda one: -one.cost))


@dataclass(frozen=True, kw_only=True)
class Stragglers(Derived):
    """The ranks that hold the others up in a recorded run."""

    found: tuple[Straggler, ...]
    """By ``SLOWER_BY`` of the step and more, the costliest first."""
    slight: tuple[Straggler, ...]
    """By ``NOTICEABLE`` and more."""

    @classmethod
    def derive(cls, steps: Steps) -> Stragglers:
        """Compare the ranks step by step."""
        return cls(found=stragglers(steps), slight=stragglers(steps, by=NOTICEABLE))


def comparable(steps: Steps) -> bool:
    """Whether the ranks work in step and their waiting was seen, for long enough."""
    if len(steps.ranks) < 2 or steps.count < ENOUGH_STEPS:
        return False
    if not all("waiting" in rank.by_name for rank in steps.ranks):
        return False
    seconds = [sum(rank.seconds) for rank in steps.ranks]
    return min(seconds) >= TOGETHER * max(seconds)


def typical_step(steps: Steps) -> float:
    """Seconds of the median step."""
    rows = (rank.seconds[: steps.count] for rank in steps.ranks)
    return median(map(fmean, zip(*rows, strict=True)))


def saving(rank: RankSteps, count: int) -> tuple[float, ...]:
    """Of each step, the seconds of a checkpoint with what is done beside it."""
    written = spent(rank, ("checkpoint",), count)
    beside = beside_saving(rank, count)
    return tuple(a + b for a, b in zip(written, beside, strict=True))


def beside_saving(rank: RankSteps, count: int) -> tuple[float, ...]:
    """Of each step with a checkpoint, by how much longer than in others all the rest took: states
    are copied before it is written, and files are brought to the disk after that."""
    written, rest = spent(rank, ("checkpoint",), count), spent(rank, ("rest",), count)
    others = [one for one, second in zip(rest, written, strict=True) if not second]
    usual = median(others) if others else max(rest)
    return tuple(
        max(0.0, one - usual) if second else 0.0 for one, second in zip(rest, written, strict=True)
    )


def recurs(more: Sequence[float], least: float) -> bool:
    """Whether what comes now and then takes so many seconds of the mean step, and not by a single
    one: one event does not tell how often it comes."""
    seconds = [max(second, 0.0) for second in more]
    enough = least * len(seconds)
    return sum(seconds) >= enough and sum(seconds) - max(seconds) >= enough / 2


def own_line(lines: Lines | None, rank: int, phases: Sequence[str], share: float) -> HotLine | None:
    """The line that a rank is met at and the others are not; at least for half of ``share``."""
    looks = {one.rank: one for one in lines.ranks if one.samples} if lines is not None else {}
    mine = looks.pop(rank, None)
    if mine is None or not looks:
        return None

    def often(of: int, wanted: HotLine) -> float:
        same = (
            line.samples
            for line in looks[of].lines
            if (line.file, line.line) == (wanted.file, wanted.line)
        )
        return sum(same) / looks[of].samples

    for line in sorted(mine.lines, key=lambda line: -line.samples):
        here = line.samples / mine.samples
        if line.phase not in phases or line.samples < ENOUGH_LOOKS or here < share / 2:
            continue
        if OWN_LINE * median_low(often(other, line) for other in looks) <= here:
            return line
    return None


def _without(rows: Rows, parts: Rows) -> Rows:
    return tuple(
        tuple(a - b for a, b in zip(row, part, strict=True))
        for row, part in zip(rows, parts, strict=True)
    )


def _spent_on(part: Part, steps: Steps, work: Workload | None) -> Rows:
    count = steps.count
    rows = tuple(spent(rank, PARTS[part], count) for rank in steps.ranks)
    if part == "checkpoint":
        rows = tuple(saving(rank, count) for rank in steps.ranks)
    elif part == "rest":
        rows = _without(rows, tuple(beside_saving(rank, count) for rank in steps.ranks))
    return work.without(rows) if work is not None and part in WITH_THE_WORK else rows


def _more(rows: Rows) -> Rows:
    """Of each rank and step, by how much more it is than the usual one."""
    usual = [median_low(step) for step in zip(*rows, strict=True)]
    return tuple(tuple(a - b for a, b in zip(row, usual, strict=True)) for row in rows)


def _more_on_cpu(
    part: Part, steps: Steps, work: Workload | None, more: Mapping[Part, Rows]
) -> Rows:
    """Of each rank and step, by how much longer than the usual one it was at this part, as its
    seconds on a CPU have it: made into the clock's, and without what the other parts took."""
    cpus = on_cpu(steps)
    clock = clock_of_cpu(steps)
    longer = _more(work.without(cpus) if work is not None else cpus)
    own = tuple(tuple(clock * second for second in row) for row in longer)
    for other in ON_CPU:
        if other != part:
            own = _without(own, tuple(tuple(max(0.0, one) for one in row) for row in more[other]))
    return own


def _steady(more: Sequence[float], on_cpu: Sequence[float], least: float) -> float:
    """Seconds by which it is later; 0: not by enough, or not again and again.

    Where it is longer on a CPU in nearly all steps, by enough, the clock has only to agree: others
    that want the CPUs as well disturb it.
    """
    middle = median(more)
    length = len(more) / STRETCHES
    stretches = (
        more[round(length * number) : round(length * (number + 1))] for number in range(STRETCHES)
    )
    if on_cpu and _often(on_cpu) >= SURE and median(on_cpu) >= least:
        return middle if _often(more) >= STEADY_WHERE_SURE and middle >= least / 2 else 0.0
    persists = _often(more) >= STEADY and all(median(one) >= least / 2 for one in stretches)
    return middle if middle >= least and persists else 0.0


def _often(more: Sequence[float]) -> float:
    return sum(second > 0 for second in more) / len(more)


def _latest(steps: Steps, index: int, phases: Sequence[str]) -> str:
    def later(phase: str) -> float:
        totals = [rank.total(phase) for rank in steps.ranks]
        return totals[index] - median_low(totals)

    return max(phases, key=later)


def _paid(
    steps: Steps, later: Mapping[tuple[int, Part], Sequence[float]]
) -> Mapping[tuple[int, Part], float]:
    """Of each late part, the share of the step that it costs where it is the only one."""

    def mended() -> Iterator[list[float]]:
        for index, rank in enumerate(steps.ranks):
            own = list(rank.local[: steps.count])
            for (late_index, _), more in later.items():
                if late_index == index:
                    own = [a - max(b, 0.0) for a, b in zip(own, more, strict=True)]
            yield own

    own = list(mended())
    last = [max(step) for step in zip(*own, strict=True)]
    return {
        (index, part): fmean(
            max(0.0, mine + second - other)
            for mine, second, other in zip(own[index], more, last, strict=True)
        )
        / steps.step
        for (index, part), more in later.items()
    }
