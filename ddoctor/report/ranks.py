"""Rank by rank: a table of every rank's rates, or of the outliers among many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddoctor.report import wording
from ddoctor.report.expectation import APART
from ddoctor.report.facts import Comparison
from ddoctor.report.places import place_name

ALL = 64
"""Up to this many ranks are all shown; of more, only the outliers."""

APART_SHOWN = 32
"""At most this many outliers are shown, the furthest behind first."""

BAR_MARGIN = 1.1
"""Room beyond the fastest rank, so that the mark of the median is visible."""

SHARES = (("lowest", 0.0), ("1 %", 0.01), ("10 %", 0.1), ("90 %", 0.9), ("highest", 1.0))
"""The ranks that show the spread of all, by their position in sorted order."""


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """The rate of one rank."""

    text: str
    share: float
    """Share of the full length of a bar, 0 to 1."""
    behind: float | None = None
    """Share of the median that is missing, if the rank is an outlier."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The table: a row per rank, a column per comparison."""

    comparisons: tuple[Comparison, ...]
    medians: tuple[RateRow, ...]
    rows: tuple[tuple[str, tuple[RateRow | None, ...]], ...]
    spread: tuple[tuple[str, tuple[RateRow, ...]], ...] = ()
    """The spread of all ranks' rates, if not every rank is shown."""
    total: int
    apart: int
    """Number of ranks that are outliers in any comparison."""


def table(compared: Sequence[Comparison]) -> Ranks:
    """Return every rank in order; of many, the outliers, the furthest behind first."""
    places = {row.place.rank: row.place for comparison in compared for row in comparison.rates}
    columns = [_Column(comparison) for comparison in compared]
    several = len({place.host for place in places.values()}) > 1
    behind = {rank: _behind(rank, columns) for rank in places}
    apart = sorted((rank for rank in places if behind[rank]), key=lambda rank: -behind[rank])
    few = len(places) <= ALL
    return Ranks(
        comparisons=tuple(compared),
        medians=tuple(column.cell(column.median) for column in columns),
        rows=tuple(
            (
                place_name(places[rank], with_host=several),
                tuple(column.of(rank) for column in columns),
            )
            for rank in (sorted(places) if few else apart[:APART_SHOWN])
        ),
        spread=()
        if few
        else tuple(
            (label, tuple(column.cell(column.at(share)) for column in columns))
            for label, share in SHARES
        ),
        total=len(places),
        apart=len(apart),
    )


class _Column:
    """One comparison, with the values that all its cells need."""

    def __init__(self, comparison: Comparison) -> None:
        self.rates: Mapping[int, float] = {row.place.rank: row.rate for row in comparison.rates}
        self.median = comparison.median
        self._sorted = sorted(self.rates.values())
        self._longest = self._sorted[-1] * BAR_MARGIN

    def at(self, share: float) -> float:
        """Return the rate at this position in sorted order, 0 to 1."""
        return self._sorted[round(share * (len(self._sorted) - 1))]

    def of(self, rank: int) -> RateRow | None:
        rate = self.rates.get(rank)
        return None if rate is None else self.cell(rate)

    def cell(self, rate: float) -> RateRow:
        return RateRow(
            text=wording.quantity(rate),
            share=rate / self._longest if self._longest else 0.0,
            behind=1 - rate / self.median if rate < APART * self.median else None,
        )


def _behind(rank: int, columns: Sequence[_Column]) -> float:
    """Return the largest share of a median that this rank lacks; 0: it is no outlier."""
    lacking = (
        1 - column.rates[rank] / column.median
        for column in columns
        if rank in column.rates and column.rates[rank] < APART * column.median
    )
    return max(lacking, default=0.0)
