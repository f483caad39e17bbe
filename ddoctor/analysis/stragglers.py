"""Which rank the others wait for, in which part of its step, and the cost.

In synchronous training a step takes equally long on all ranks, and so does its backward pass. What
differs is the own work of a rank before it enters the collective. Each part of that work is
compared to the same part on the usual rank, step by step, so that noise on all ranks has no effect.
The cost is a what-if (as in "Understanding Stragglers in Large Model Training Using What-if
Analysis", OSDI'25): the step time minus the step time with this rank as fast as the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, median_low
from typing import Literal

from ddoctor.analysis import live_cost
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.work_imbalance import (
    COMPUTING,
    Rows,
    Workload,
    clock_of_cpu,
    on_cpu,
    workload,
)
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import HotLine, Lines, RankLines, RankSteps, Steps
from ddoctor.models import Observation

Part = Literal["loading", "computing", "checkpoint", "evaluation", "gc", "rest"]

PARTS: Mapping[Part, tuple[str, ...]] = {
    "loading": ("loader", "to-device"),
    "computing": COMPUTING,
    "checkpoint": ("checkpoint",),
    "evaluation": ("evaluation",),
    "gc": ("gc",),
    "rest": ("rest",),
}
"""The phases of each part of a rank's own work."""

WITH_THE_WORK = ("loading", "computing", "rest")
"""Parts that take longer with more tokens or samples."""

NOW_AND_THEN: tuple[Part, ...] = ("checkpoint", "evaluation", "gc", "rest")
"""Parts of some steps only: judged by the mean, the others by the median."""

ON_CPU: tuple[Part, ...] = ("computing", *NOW_AND_THEN)
"""Parts that use a CPU."""

# A least change of 10 % removed the false alarms of a published detector (GREYHOUND, ATC'25); 5 %
# between the GPUs of a node is normal (ml-engineering).
SLOWER_BY = 0.10
# Slowness is persistent (per-step p90 1.06 of a job's median, OSDI'25), so a few dozen steps show
# it, and fewer than ten do not.
ENOUGH_STEPS = 10
# A trace of a profiler has no more: its schedules record 3 to 10 steps. So few may be slow by
# chance, so each of them must be slow, and by as much more as may be noise (live_cost).
ENOUGH_TRACED = 3
# Seconds of traced steps on CPUs: other processes use these for tens of milliseconds at a time.
# Measured on two CPUs with three processes that wanted them, a healthy rank of two was slower in
# 5 of 5 steps of 10 ms.
ENOUGH_TRACED_SECONDS = 0.5
# A healthy rank of two is the slower one in half of the steps: 48 of 60 happen by chance three
# times in a million (binomial), but noise lasts longer than a step. On two busy CPUs, where all
# steps took twice as long, a healthy rank was slower in 77 % of them, and one with 15 % more work
# in 80 %.
STEADY = 0.80
# CPU seconds separated them in every step (those of healthy ranks differed by 0.2 % of the step).
# If these agree in nearly all steps, the clock may be disturbed in more of them.
SURE, STEADY_WHERE_SURE = 0.95, 0.60
# Below a slowdown of 1.04 ordinary noise wins (Holmes, NSDI'25).
NOTICEABLE = 0.04
# Other processes on the same CPU come and go: the delay must last from the start to the end.
STRETCHES = 3
# Ranks that do not wait for each other take different total times.
TOGETHER = 0.90
# A line is specific to the straggler if the others have a quarter of its samples there, or less.
OWN_LINE = 4.0
# Fewer samples may be at the line by chance.
ENOUGH_LOOKS = 3
# It takes longer for what all ranks do if it has most of its samples there.
MOST = 0.5


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that is slower than the usual rank in one part of its step."""

    place: RankPlace
    part: Part
    phase: str
    """The phase of this part in which it loses the most time."""
    seconds: float
    """The time it loses in the median step, or in the mean step for parts of some steps only."""
    usual: float
    """Seconds of the whole part on the usual rank."""
    behind: int
    """The number of steps in which it was slower."""
    on_cpu: float | None = None
    """Seconds of the loss that its main thread was on a CPU; None: not known, or it uses a GPU."""
    cost: float = 0.0
    """The share of the step, 0 to 1, that is saved if it is as fast as the others."""

    def observation(self, steps: Steps) -> Observation:
        """The seconds of this part on this rank and on the usual rank, as evidence."""
        return Observation(
            name=f"{self.part} in a step, rank {self.place.rank}",
            value=round(1000 * (self.usual + self.seconds), 1),
            unit="ms",
            expected=round(1000 * self.usual, 1),
            source=f"usual value of {len(steps.ranks)} ranks",
        )


def stragglers(steps: Steps, *, by: float = SLOWER_BY) -> tuple[Straggler, ...]:
    """Ranks and parts that delay the others by this share of the step, the costliest first.

    Time that different amounts of work explain is left out.
    """
    if not comparable(steps):
        return ()
    least = by * median(steps.seconds)
    work = workload(steps)
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
            if not seconds and part in NOW_AND_THEN and not few(steps) and recurs(later, least):
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
                    on_cpu=usually(cpu) if cpu else None,
                )
    paid = _paid(steps, {(index, part): more[part][index] for index, part in found})
    costly = (replace(one, cost=paid[key]) for key, one in found.items())
    enough_lost = (one for one in costly if one.cost >= by / 2)
    return tuple(sorted(enough_lost, key=lambda one: -one.cost))


@dataclass(frozen=True, kw_only=True)
class Stragglers(Derived):
    """The ranks that delay the others in a recorded run."""

    found: tuple[Straggler, ...]
    """Those with a loss of at least ``SLOWER_BY`` of the step (of few steps: ``live_cost.SURE``),
    the costliest first."""
    slight: tuple[Straggler, ...]
    """Those with a loss of at least ``NOTICEABLE`` of the step."""

    @classmethod
    def derive(cls, steps: Steps) -> Stragglers:
        """Compare the ranks step by step."""
        if few(steps):
            return cls(found=stragglers(steps, by=live_cost.SURE), slight=())
        return cls(found=stragglers(steps), slight=stragglers(steps, by=NOTICEABLE))


def enough(steps: Steps) -> bool:
    """Whether there are enough steps to judge; those of a trace are few."""
    if not steps.traced:
        return steps.count >= ENOUGH_STEPS
    lasts = steps.clock == "cuda" or sum(steps.seconds) >= ENOUGH_TRACED_SECONDS
    return steps.count >= ENOUGH_TRACED and lasts


def few(steps: Steps) -> bool:
    """Whether there are fewer steps than a recorded run needs: a slowdown may be chance."""
    return steps.count < ENOUGH_STEPS


def comparable(steps: Steps) -> bool:
    """Whether the ranks work in step, and enough steps with their waits are recorded."""
    if len(steps.ranks) < 2 or not enough(steps) or not steps.complete:
        return False
    if not all("waiting" in rank.by_name for rank in steps.ranks):
        return False
    seconds = [sum(rank.seconds) for rank in steps.ranks]
    return min(seconds) >= TOGETHER * max(seconds)


def saving(rank: RankSteps) -> tuple[float, ...]:
    """Seconds of each step for a checkpoint, with the work around it."""
    written, beside = rank.spent("checkpoint"), _beside_saving(rank)
    return tuple(a + b for a, b in zip(written, beside, strict=True))


def _beside_saving(rank: RankSteps) -> tuple[float, ...]:
    """Extra seconds of the rest of each step with a checkpoint, compared to steps without one.

    The script copies states before it writes them, and flushes files to the disk afterwards.
    """
    written, rest = rank.spent("checkpoint"), rank.spent("rest")
    others = [one for one, second in zip(rest, written, strict=True) if not second]
    usual = median(others) if others else max(rest)
    return tuple(
        max(0.0, one - usual) if second else 0.0 for one, second in zip(rest, written, strict=True)
    )


def most_affected(steps: Steps, rows: Rows) -> tuple[RankPlace, ...]:
    """The ranks with at least half of the seconds of the rank that has the most."""
    most = max(map(sum, rows))
    return tuple(
        rank.place for rank, row in zip(steps.ranks, rows, strict=True) if sum(row) >= most / 2
    )


def recurs(more: Sequence[float], least: float) -> bool:
    """Whether an occasional delay costs at least these seconds of the mean step, more than once.

    A single event does not show how often it happens.
    """
    seconds = [max(second, 0.0) for second in more]
    enough = least * len(seconds)
    return sum(seconds) >= enough and sum(seconds) - max(seconds) >= enough / 2


def own_line(lines: Lines | None, rank: int, phases: Sequence[str], share: float) -> HotLine | None:
    """A line where only this rank has samples, for at least half of ``share``; None: none.

    Samples count by the call that leads to its lines: one that waits for Python's lock may fall on
    the line after a call, and work within it may be spread over many lines.
    """
    mine, others = _apart(lines, rank)
    if mine is None or not others:
        return None
    reached = _reached(others)
    begins: dict[Frame, list[HotLine]] = defaultdict(list)
    at = _at(mine, phases)
    for line in mine.lines:
        here = at[line.file, line.line] if line.phase in phases else 0
        usual = _usual(others, line, phases)
        if here >= ENOUGH_LOOKS and OWN_LINE * usual <= here / mine.samples:
            begins[_begin(line, reached)].append(line)
    own = max(begins.values(), key=_samples, default=[])
    if not own or _samples(own) < share / 2 * mine.samples:
        return None
    return max(own, key=lambda line: (at[line.file, line.line], line.samples))


def extra_work(one: Straggler, steps: Steps, lines: Lines | None) -> bool:
    """Whether a rank takes longer outside of the model since it does what the others do not.

    It is so unless samples show that it takes longer for what all ranks do.
    """
    phases = PARTS[one.part]
    if one.part not in ("evaluation", "rest"):
        return False
    mine, others = _apart(lines, one.place.rank)
    if mine is None or own_line(lines, one.place.rank, phases, one.seconds / steps.step):
        return True
    at, reached = _at(mine, phases), _reached(others)
    there = [line for line in mine.lines if line.phase in phases]
    alike = [
        line
        for line in there
        if OWN_LINE * _usual(others, line, phases) > at[line.file, line.line] / mine.samples
        # All of them also run the calls that lead there.
        and _place(_begin(line, reached)) in reached
    ]
    return _samples(alike) < max(ENOUGH_LOOKS, MOST * _samples(there))


def _apart(lines: Lines | None, rank: int) -> tuple[RankLines | None, Sequence[RankLines]]:
    """The samples of this rank, and those of each other one."""
    looks = {one.rank: one for one in lines.ranks if one.samples} if lines is not None else {}
    mine = looks.pop(rank, None)
    return mine, list(looks.values())


def _at(mine: RankLines, phases: Sequence[str]) -> Counter[tuple[str, int]]:
    """The samples of each line in these phases."""
    at: Counter[tuple[str, int]] = Counter()
    for line in mine.lines:
        if line.phase in phases:
            at[line.file, line.line] += line.samples
    return at


def _usual(others: Sequence[RankLines], line: HotLine, phases: Sequence[str]) -> float:
    """The share of their samples that the other ranks have at a line."""
    # To evaluate, a rank runs lines of the model that all ranks run to train.
    apart = phases if phases == PARTS["evaluation"] else ()
    return median_low(one.share(line, *apart) for one in others) if others else 0.0


def _samples(lines: Sequence[HotLine]) -> int:
    return sum(line.samples for line in lines)


def parting(lines: Lines | None, rank: int, line: HotLine) -> Frame:
    """The outermost of the calls that lead to a rank's line which no other rank was sampled in.

    The line itself may be in a function that all ranks call, such as the model's.
    """
    others = [one for one in lines.ranks if one.rank != rank] if lines is not None else []
    return _begin(line, _reached(others))


def _reached(others: Iterable[RankLines]) -> set[tuple[str, int]]:
    return {
        place
        for hot in (hot for one in others for hot in one.lines)
        for place in (_place(hot), *map(_place, hot.calls))
    }


def _begin(line: HotLine, reached: set[tuple[str, int]]) -> Frame:
    own = Frame(file=line.file, line=line.line, function=line.function, text=line.text)
    return next((one for one in line.calls if _place(one) not in reached), own)


def _place(at: Frame | HotLine) -> tuple[str, int]:
    return at.file, at.line


def without(rows: Rows, parts: Rows) -> Rows:
    """The rows less these parts of them."""
    return tuple(
        tuple(a - b for a, b in zip(row, part, strict=True))
        for row, part in zip(rows, parts, strict=True)
    )


def _spent_on(part: Part, steps: Steps, work: Workload | None) -> Rows:
    if part == "checkpoint":
        return tuple(map(saving, steps.ranks))
    rows = tuple(rank.spent(*PARTS[part]) for rank in steps.ranks)
    if part == "rest":
        rows = without(rows, tuple(map(_beside_saving, steps.ranks)))
    return work.without(rows) if work is not None and part in WITH_THE_WORK else rows


def _more(rows: Rows) -> Rows:
    """The difference of each rank and step to the usual rank."""
    usual = [median_low(step) for step in zip(*rows, strict=True)]
    return tuple(tuple(a - b for a, b in zip(row, usual, strict=True)) for row in rows)


def _more_on_cpu(
    part: Part, steps: Steps, work: Workload | None, more: Mapping[Part, Rows]
) -> Rows:
    """Extra seconds of each rank and step in this part, by CPU time.

    Scaled to wall-clock time, and without the extra time of the other parts.
    """
    cpus = on_cpu(steps)
    clock = clock_of_cpu(steps)
    longer = _more(work.without(cpus) if work is not None else cpus)
    own = tuple(tuple(clock * second for second in row) for row in longer)
    for other in ON_CPU:
        if other != part:
            own = without(own, tuple(tuple(max(0.0, one) for one in row) for row in more[other]))
    return own


def _steady(more: Sequence[float], on_cpu: Sequence[float], least: float) -> float:
    """Seconds by which it is slower; 0: too little, or not persistent.

    If its CPU time is longer in nearly all steps, the clock need only agree: other processes on the
    same CPUs disturb it.
    """
    middle = median(more)
    length = len(more) / STRETCHES
    stretches = (
        more[round(length * number) : round(length * (number + 1))] for number in range(STRETCHES)
    )
    if on_cpu and _often(on_cpu) >= SURE and median(on_cpu) >= least:
        return middle if _often(more) >= STEADY_WHERE_SURE and middle >= least / 2 else 0.0
    steady = STEADY if len(more) >= ENOUGH_STEPS else 1.0
    persists = _often(more) >= steady and all(median(one) >= least / 2 for one in stretches)
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
    """The share of the step that each slow part costs, if it is the only one."""
    own = [list(rank.local) for rank in steps.ranks]
    for (index, _), more in later.items():
        own[index] = [a - max(b, 0.0) for a, b in zip(own[index], more, strict=True)]
    last = [max(step) for step in zip(*own, strict=True)]
    return {
        (index, part): fmean(
            max(0.0, mine + second - other)
            for mine, second, other in zip(own[index], more, last, strict=True)
        )
        / steps.step
        for (index, part), more in later.items()
    }
