"""How much of the ranks' different times comes from different amounts of work.

The amount of input of the model (tokens, pixels, samples) is compared to the time, within each
step, so that a slowdown of all ranks has no effect. The slope is the cost of one more unit. If the
amounts change from step to step, each rank is also compared to itself. So a rank that is slow with
any input does not look like a rank with more input. On CPUs the time is CPU time, since other
processes on the host lengthen the wall-clock time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_low

from ddoctor.evidence.steps import Steps

Rows = tuple[tuple[float, ...], ...]
"""One value per rank and step."""

COMPUTING = ("forward", "backward", "optimizer")
"""Phases that take longer with more work."""

# A smaller difference makes less than a slowdown that counts (10 %: GREYHOUND, ATC'25).
UNEVEN = 0.10
# Attention costs the square of the length, and nothing in a model costs more. Time that grows even
# faster has another reason.
STEEPEST = 2.0
# Of the variance. Two busy CPUs, ten processes that want them: by the clock 0.1 to 0.7 were
# explained in runs with uneven work, by the CPU seconds 0.4 to 0.96.
EXPLAINED = 0.3
# If less of the variance of the amounts is within the ranks, each rank has its own usual amount.
CHANGES = 0.25


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Different amounts of work on the ranks, and the time that they explain."""

    unit: str
    """The unit of the work: numbers (of text: tokens) or samples."""
    amounts: Rows
    seconds_each: float
    """Wall-clock seconds for one more unit."""

    @property
    def ratio(self) -> float:
        """How much more the rank with the most had than the usual rank, in the median step; 0.5 is
        half as much more."""
        return median(_most(step) for step in zip(*self.amounts, strict=True))

    @property
    def lost(self) -> float:
        """Seconds of the mean step that equal amounts would save."""
        return self.seconds_each * fmean(map(max, zip(*_from_mean(self.amounts), strict=True)))

    @property
    def longer(self) -> float:
        """Seconds by which the rank with the most computes longer than the usual rank."""
        more = (max(step) - median_low(step) for step in zip(*self.amounts, strict=True))
        return self.seconds_each * fmean(more)

    def heaviest(self, rank: int) -> float:
        """The share of the steps, 0 to 1, in which the rank at this index had the most."""
        steps: list[tuple[float, ...]] = list(zip(*self.amounts, strict=True))
        return sum(step[rank] == max(step) > min(step) for step in steps) / len(steps)

    def without(self, rows: Rows) -> Rows:
        """These seconds, corrected to equal amounts."""
        slope, _ = _fit(self.amounts, rows)
        return tuple(
            tuple(second - slope * more for second, more in zip(row, amounts, strict=True))
            for row, amounts in zip(rows, _from_mean(self.amounts), strict=True)
        )


def on_cpu(steps: Steps) -> Rows:
    """CPU seconds of each rank and step; empty: not known, or the ranks work on GPUs."""
    known = all(rank.cpu and rank.place.device == "cpu" for rank in steps.ranks)
    return tuple(rank.cpu for rank in steps.ranks) if known else ()


def clock_of_cpu(steps: Steps) -> float:
    """Wall-clock seconds per CPU second of the last rank's computing; at least 1.

    A rank may also use a CPU outside these phases.
    """
    rows = (rank.spent(*COMPUTING) for rank in steps.ranks)
    cpu = fmean(map(max, zip(*on_cpu(steps), strict=True)))
    return max(1.0, fmean(map(max, zip(*rows, strict=True))) / cpu) if cpu else 1.0


def workload(steps: Steps) -> Workload | None:
    """The unit of work that explains the times; None: equal amounts, or no relation."""
    if len(steps.ranks) < 2 or not steps.count:
        return None
    cpu = on_cpu(steps)
    rows = cpu or tuple(rank.spent(*COMPUTING) for rank in steps.ranks)
    scale = clock_of_cpu(steps) if cpu else 1.0
    units = {
        # First, since as many numbers go with as many samples.
        "samples": tuple(rank.samples for rank in steps.ranks),
        "numbers": tuple(rank.elements for rank in steps.ranks),
    }
    found = None
    for unit, counted in units.items():
        amounts = tuple(tuple(map(float, row)) for row in counted)
        if not all(amounts) or fmean(map(_most, zip(*amounts, strict=True))) < UNEVEN:
            continue
        slope, explained = _fit(amounts, rows)
        work = Workload(unit=unit, amounts=amounts, seconds_each=scale * slope)
        better = found is None or work.lost > (1 + UNEVEN) * found.lost
        if slope > 0 and explained >= EXPLAINED and better:
            found = work
    return found


def _fit(amounts: Rows, seconds: Rows) -> tuple[float, float]:
    """The cost of one more unit, at least 0, and the share of the variance it explains, 0 to 1."""
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
    """The relative difference of the most to the usual amount."""
    usual = median_low(amounts)
    return max(amounts) / usual - 1 if usual else 0.0


def _from_mean(rows: Rows) -> Rows:
    """Each value minus the mean of its step."""
    means = [fmean(step) for step in zip(*rows, strict=True)]
    return tuple(tuple(a - b for a, b in zip(row, means, strict=True)) for row in rows)


def _around_own(rows: Rows) -> Rows:
    """Each value minus the mean of its rank."""
    return tuple(tuple(one - fmean(row) for one in row) for row in rows)


def _inner(a: Rows, b: Rows) -> float:
    return sum(
        x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)
    )
