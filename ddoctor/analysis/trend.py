"""Whether an amount keeps growing with the steps, robust against short spikes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

# Three samples in each quarter, so that one outlier does not set the median of a quarter.
FEWEST_LOOKS = 12
# Detectors of slow steps require ten of them (GREYHOUND, ATC'25).
FEWEST_STEPS = 10
# An amount that settles with a time constant as long as all samples grows 0.61 times as fast in the
# second half as in the first; one that settles sooner grows even slower.
GOES_ON = 2 / 3
# Growth must exceed the variation between steps by this factor.
OVER_SWING = 5.0
# The number of pairs grows with the square of the points; this many give a good slope.
MOST_POINTS = 64


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A straight line through the amounts, over the steps."""

    first: float
    """The amount on that line at the first sample."""
    per_step: float
    """The median slope of all pairs of points (Theil and Sen)."""
    growth: float
    """The growth along that line, from the first sample to the last."""
    swing: float
    """The median distance from the line."""
    steady: bool
    """Whether it grew from each quarter to the next, and hardly slower at the end."""

    @property
    def last(self) -> float:
        """The amount on that line at the last sample."""
        return self.first + self.growth

    def proves(self, least: float = 0.0) -> bool:
        """Whether it grew steadily, by at least this amount and far more than it varies."""
        return self.steady and self.growth >= max(least, OVER_SWING * self.swing)


def trend(steps: Sequence[int], amounts: Sequence[float]) -> Trend | None:
    """How the amounts grew with the steps; None: too few samples or steps, or not the same."""
    if len(steps) != len(amounts):
        return None
    every = -(-len(steps) // MOST_POINTS) or 1
    points = list(zip(steps, amounts, strict=True))[::every]
    if len(points) < FEWEST_LOOKS or points[-1][0] - points[0][0] < FEWEST_STEPS:
        return None
    slope = _slope(points)
    start = median(amount - slope * step for step, amount in points)
    half = len(points) // 2
    cuts = [len(points) * quarter // 4 for quarter in range(5)]
    quarters = [median(amount for _, amount in points[a:b]) for a, b in pairwise(cuts)]
    return Trend(
        first=start + slope * points[0][0],
        per_step=slope,
        growth=slope * (points[-1][0] - points[0][0]),
        swing=median(abs(amount - start - slope * step) for step, amount in points),
        steady=all(a < b for a, b in pairwise(quarters))
        and _slope(points[half:]) >= GOES_ON * _slope(points[:half]),
    )


def _slope(points: Sequence[tuple[int, float]]) -> float:
    slopes = [
        (after - before) / (later - step)
        for (step, before), (later, after) in combinations(points, 2)
        if later > step
    ]
    return median(slopes) if slopes else 0.0
