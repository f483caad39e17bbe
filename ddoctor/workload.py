"""How much of the ranks' different times is that they were given different amounts of work.

Pure: recorded steps in, figures out.

What the model was given (tokens, pixels, samples) is held against the time that it took, within
each step, so that what slows all ranks alike takes no part: the slope is the price of one more.
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


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Different amounts of work on the ranks, and what of their time that explains."""

    unit: str
    """What the work is counted in: numbers (of text: tokens) or samples."""
    amounts: Rows
    seconds_each: float
    """What one more of the unit costs."""
    excess: Rows
    """Of each rank and step, the seconds that it computed longer than the mean rank because of its
    amount; negative: shorter."""
    lost: float
    """Seconds of a step that equal amounts would save: until the last rank is done, less the mean
    of all; the mean over steps."""

    @property
    def ratio(self) -> float:
        """How much more the rank with the most had than the usual one, in the median step."""
        steps: Iterator[tuple[float, ...]] = zip(*self.amounts, strict=True)
        return median(map(_most, steps))

    def heaviest(self, rank: int) -> float:
        """In what part of the steps the rank at this place had the most."""
        steps: list[tuple[float, ...]] = list(zip(*self.amounts, strict=True))
        return sum(step[rank] == max(step) > min(step) for step in steps) / len(steps)


def spent(rank: RankSteps, phases: Sequence[str], count: int) -> tuple[float, ...]:
    """Seconds of several phases together, of each of the first ``count`` steps."""
    rows = [rank.by_name[phase][:count] for phase in phases if phase in rank.by_name]
    return tuple(map(sum, zip(*rows, strict=True))) if rows else (0.0,) * count


def workload(steps: Steps) -> Workload | None:
    """The unit of work that explains the most; None: the ranks had equal amounts, or the time does
    not follow them."""
    found = list(_workloads(steps)) if len(steps.ranks) > 1 and steps.count else []
    return max(found, key=lambda work: work.lost, default=None)


def _workloads(steps: Steps) -> Iterator[Workload]:
    count = steps.count
    seconds = tuple(spent(rank, COMPUTING, count) for rank in steps.ranks)
    away = _from_mean(seconds)
    units = {
        "numbers": tuple(rank.elements for rank in steps.ranks),
        "samples": tuple(rank.samples for rank in steps.ranks),
    }
    for unit, counted in units.items():
        if any(len(row) < count for row in counted):
            continue
        amounts = tuple(tuple(map(float, row[:count])) for row in counted)
        spread = fmean(_most(step) for step in zip(*amounts, strict=True))
        if spread < UNEVEN:
            continue
        more = _from_mean(amounts)
        slope = _inner(more, away) / _inner(more, more)
        steepest = STEEPEST * fmean(map(fmean, seconds)) / fmean(map(fmean, amounts))
        slope = min(slope, steepest)
        if slope <= 0:
            continue
        excess = tuple(tuple(slope * one for one in row) for row in more)
        left = tuple(
            tuple(one - part for one, part in zip(row, parts, strict=True))
            for row, parts in zip(away, excess, strict=True)
        )
        yield Workload(
            unit=unit,
            amounts=amounts,
            seconds_each=slope,
            excess=excess,
            lost=_lost(away) - _lost(left),
        )


def _most(amounts: Sequence[float]) -> float:
    """By what part the most is more than the usual."""
    usual = median_low(amounts)
    return max(amounts) / usual - 1 if usual else 0.0


def _from_mean(rows: Rows) -> Rows:
    means = [fmean(step) for step in zip(*rows, strict=True)]
    return tuple(tuple(a - b for a, b in zip(row, means, strict=True)) for row in rows)


def _inner(a: Rows, b: Rows) -> float:
    return sum(
        x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)
    )


def _lost(away: Rows) -> float:
    return fmean(max(step) for step in zip(*away, strict=True))
