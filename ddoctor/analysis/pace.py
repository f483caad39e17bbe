"""Where the steps of a log become slower for good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median, quantiles

from ddoctor.evidence.printed_pace import PaceSeries, PrintedPace

FEWEST = 30
"""Figures before and after."""
SLOWER = 1.25
"""Printed figures are smoothed, and cover evaluations and checkpoints."""
RISING = 0.8
"""The share of figures above the one before from which on they are sums."""


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A lasting change of pace, by a figure of a log."""

    series: PaceSeries
    at: int
    """The first of its values at the new pace."""
    before: float
    after: float
    """Medians, as printed."""
    factor: float
    """How many times as long a step takes."""

    @property
    def place(self) -> str:
        """Where it begins, say ``step 3010 (train.log:301)``."""
        line = f"{self.series.file}:{self.series.lines[self.at]}"
        step = self.series.steps[self.at]
        return line if step is None else f"step {step} ({line})"


def slowdowns(pace: PrintedPace) -> Iterator[Slowdown]:
    """Yield the slowdown of each series that has one."""
    for series in pace.series:
        if (found := _slowdown(series)) is not None:
            yield found


def _slowdown(series: PaceSeries) -> Slowdown | None:
    times = series.slowness
    if len(times) < 2 * FEWEST:
        return None
    # Sums of time rise from line to line, and what they are of does not become slower.
    if sum(later > before for before, later in pairwise(times)) > RISING * len(times):
        return None
    split = _split(times)
    before, after = times[:split], times[split:]
    if min(len(before), len(after)) < FEWEST:
        return None
    factor = median(after) / median(before)
    # Nearly all of the figures after it are above nearly all of those before.
    if factor < SLOWER or quantiles(after, n=10)[0] <= quantiles(before, n=10)[-1]:
        return None
    return Slowdown(
        series=series,
        at=split,
        before=median(series.values[:split]),
        after=median(series.values[split:]),
        factor=factor,
    )


def _split(times: Sequence[float]) -> int:
    """The place of the change, at which the distances from the medians on both sides are least.

    The medians are those of the most likely change point by ranks, in which single large values
    count little: Pettitt 1979, "A Non-Parametric Approach to the Change-Point Problem".
    """
    ranks = [0] * len(times)
    for rank, place in enumerate(sorted(range(len(times)), key=times.__getitem__)):
        ranks[place] = rank
    middle = (len(times) - 1) / 2
    rough = _first_of_rest([middle - rank for rank in ranks])
    if not 0 < rough < len(times):
        return 0
    before, after = median(times[:rough]), median(times[rough:])
    return _first_of_rest([abs(one - after) - abs(one - before) for one in times])


def _first_of_rest(gains: Sequence[float]) -> int:
    """The number of first gains with the largest sum."""
    sums = [*accumulate(gains, initial=0.0)]
    return sums.index(max(sums))
