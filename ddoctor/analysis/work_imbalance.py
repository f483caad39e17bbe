"""How much of the ranks' different times is that they were given different amounts of work.

Pure: recorded steps in, figures out.

What the model was given (tokens, pixels, samples) is held against the time that it took, within
each step, so that what slows all ranks alike takes no part: the slope is the price of one more.
Where the amounts change from step to step, each rank is held against itself as well, so that a
rank that is slow whatever it is given does not look like one that is given more. On CPUs it is the
seconds on a CPU that are looked at: others on the same host lengthen the clock's, not those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low

from ddoctor.evidence.steps import RankSteps, Steps

Rows = tuple[tuple[float, ...], ...]
"""Of each rank, a figure of each step."""

COMPUTING = ("forward", "backward", "optimizer")
"""What takes longer with more work."""

# Less difference than this makes less than a slowdown that counts (10 %: GREYHOUND, ATC'25).
UNEVEN = 0.10
# Attention costs the square of the length, nothing in a model more: time that grows still faster
# than that has another reason.
STEEPEST = 2.0
# Of the variance. Two busy CPUs, ten processes that want them: by the clock 0.1 to 0.7 were
# explained in runs with uneven work, by the CPU seconds 0.4 to 0.96.
EXPLAINED = 0.3
# Less of the amounts' variance than this within the ranks, and each rank has its own usual amount.
CHANGES = 0.25


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Different amounts of work on the ranks, and what of their time that explains."""

    unit: str
    """What the work is counted in: numbers (of text: tokens) or samples."""
    amounts: Rows
    seconds_each: float
    """What one more of the unit costs, by the clock."""

    @property
    def ratio(self) -> float:
        """How much more the rank with the most had than the usual one, in the median step."""
        steps: Iterator[tuple[float, ...]] = zip(*self.amounts, strict=True)
        return median(map(_most, steps))

    @property
    def lost(self) -> float:
        """Seconds of the mean step that equal amounts would save: what the rank with the most has
        more than the mean one."""
        return self.seconds_each * fmean(map(max, zip(*_from_mean(self.amounts), strict=True)))

    @property
    def longer(self) -> float:
        """Seconds by which the rank with the most computes longer than the usual one."""
        steps: Iterator[tuple[float, ...]] = zip(*self.amounts, strict=True)
        return self.seconds_each * fmean(max(step) - median_low(step) for step in steps)

    def heaviest(self, rank: int) -> float:
        """In what part of the steps the rank at this place had the most."""
        steps: list[tuple[float, ...]] = list(zip(*self.amounts, strict=True))
        return sum(step[rank] == max(step) > min(step) for step in steps) / len(steps)

    def without(self, rows: Rows) -> Rows:
        """These seconds as they would be with equal amounts."""
        slope, _ = _fit(self.amounts, rows)
        return tuple(
            tuple(second - slope * more for second, more in zip(row, amounts, strict=True))
            for row, amounts in zip(rows, _from_mean(self.amounts), strict=True)
        )


def spent(rank: RankSteps, phases: Sequence[str], count: int) -> tuple[float, ...]:
    """Seconds of several phases together, of each of the first ``count`` steps."""
    rows = [rank.by_name[phase][:count] for phase in phases if phase in rank.by_name]
    return tuple(map(sum, zip(*rows, strict=True))) if rows else (0.0,) * count


def on_cpu(steps: Steps) -> Rows:
    """Seconds of each rank and step on a CPU; empty: not seen, or the ranks work on GPUs."""
    rows = tuple(rank.cpu[: steps.count] for rank in steps.ranks)
    of_cpus = all(rank.place.device == "cpu" for rank in steps.ranks)
    return rows if of_cpus and all(len(row) == steps.count for row in rows) else ()


def clock_of_cpu(steps: Steps) -> float:
    """By the clock, for each second on a CPU: of the last rank's computing, and 1 at least, since
    a rank may be on a CPU beside that."""
    count = steps.count
    rows = (spent(rank, COMPUTING, count) for rank in steps.ranks)
    cpu = fmean(map(max, zip(*on_cpu(steps), strict=True)))
    return max(1.0, fmean(map(max, zip(*rows, strict=True))) / cpu) if cpu else 1.0


def workload(steps: Steps) -> Workload | None:
    """The unit of work that explains the times; None: the ranks had equal amounts, or the time does
    not follow them."""
    count = steps.count
    if len(steps.ranks) < 2 or not count:
        return None
    cpu = on_cpu(steps)
    rows = cpu or tuple(spent(rank, COMPUTING, count) for rank in steps.ranks)
    scale = clock_of_cpu(steps) if cpu else 1.0
    units = {
        # First, since as many numbers go with as many samples.
        "samples": tuple(rank.samples for rank in steps.ranks),
        "numbers": tuple(rank.elements for rank in steps.ranks),
    }
    found = None
    for unit, counted in units.items():
        if any(len(row) < count for row in counted):
            continue
        amounts = tuple(tuple(map(float, row[:count])) for row in counted)
        if fmean(map(_most, zip(*amounts, strict=True))) < UNEVEN:
            continue
        slope, explained = _fit(amounts, rows)
        work = Workload(unit=unit, amounts=amounts, seconds_each=scale * slope)
        better = found is None or work.lost > (1 + UNEVEN) * found.lost
        if slope > 0 and explained >= EXPLAINED and better:
            found = work
    return found


def _fit(amounts: Rows, seconds: Rows) -> tuple[float, float]:
    """What one more costs, none of it where more is faster; and what of the variance it explains,
    0 to 1."""
    more, away = _from_mean(amounts), _from_mean(seconds)
    changing = _around_own(more)
    if _inner(changing, changing) >= CHANGES * _inner(more, more):
        more, away = changing, _around_own(away)
    variance, whole = _inner(more, more), _inner(away, away)
    if not variance or not whole:
        return 0.0, 0.0
    steepest = STEEPEST * fmean(map(fmean, seconds)) / fmean(map(fmean, amounts))
    slope = min(max(_inner(more, away) / variance, 0.0), steepest)
    return slope, slope * slope * variance / whole


def _most(amounts: Sequence[float]) -> float:
    """By what part the most is more than the usual."""
    usual = median_low(amounts)
    return max(amounts) / usual - 1 if usual else 0.0


def _from_mean(rows: Rows) -> Rows:
    """Each figure, less the mean of its step."""
    means = [fmean(step) for step in zip(*rows, strict=True)]
    return tuple(tuple(a - b for a, b in zip(row, means, strict=True)) for row in rows)


def _around_own(rows: Rows) -> Rows:
    """Each figure, less the mean of its rank."""
    return tuple(tuple(one - fmean(row) for one in row) for row in rows)


def _inner(a: Rows, b: Rows) -> float:
    return sum(
        x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)
    )
