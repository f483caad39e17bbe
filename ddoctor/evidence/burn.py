"""The rate that each rank sustains under constant load, and whether its results stay correct."""

from __future__ import annotations

import statistics
from typing import ClassVar

from ddoctor.evidence.probes import RankPlace, RankRate
from ddoctor.evidence.section import Part, Section


class Burning(Part, frozen=True, kw_only=True):
    """One rank during the burn."""

    place: RankPlace
    rates: tuple[float, ...]
    """TFLOP/s in equal parts of the time."""
    products: int
    """Number of products that were compared with the first, bit by bit."""
    wrong: int = 0
    """Number of products that differed from the first."""
    wrong_after: float | None = None
    """Seconds from the start to the first product that differed."""
    expected: float | None = None
    """The first wrong number as the first product has it; None: not a number."""
    got: float | None = None
    """The same number as the product that differed has it; None: not a number."""
    temperatures: tuple[int, ...] = ()
    """°C at the end of each part; empty: not reported."""
    limited_by: tuple[str, ...] = ()
    """Every reason that limited the clocks during the burn, as NVML names it."""

    @property
    def fallen(self) -> float | None:
        """Share by which the rate fell from the first third of the time to the last.

        0 if the two overlap; None if there are too few parts.
        """
        third = len(self.rates) // 3
        if third < 2:
            return None
        first, last = self.rates[:third], self.rates[-third:]
        if max(last) >= min(first):
            return 0.0
        return 1 - statistics.median(last) / statistics.median(first)

    @property
    def sustained(self) -> RankRate:
        """The median rate of all parts, with its interquartile range."""
        spread = 0.0
        if len(self.rates) > 1:
            low, _, high = statistics.quantiles(self.rates, n=4)
            spread = high - low
        return RankRate(place=self.place, rate=statistics.median(self.rates), spread=spread)


class Burn(Section, frozen=True, kw_only=True):
    """The same matrix multiplication, repeated on every rank independently."""

    probe: ClassVar[str] = "burn"

    dtype: str
    size: int
    """Rows of the square matrices."""
    seconds: float
    ranks: tuple[Burning, ...]
