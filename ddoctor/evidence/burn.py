"""What each rank sustains when it computes without a break, and whether it stays right."""

from __future__ import annotations

import statistics
from typing import ClassVar

from ddoctor.evidence.probes import RankPlace, RankRate
from ddoctor.evidence.section import Part, Section


class Burning(Part, frozen=True, kw_only=True):
    """One rank in the course of the burn."""

    place: RankPlace
    rates: tuple[float, ...]
    """TFLOP/s, in equal parts of the time."""
    products: int
    """So many were compared with the first, bit by bit."""
    wrong: int = 0
    """So many of them differed."""
    wrong_after: float | None = None
    """Seconds from the beginning to the first that differed."""
    expected: float | None = None
    """The first number that differed, as the first product has it; None: not a number."""
    got: float | None = None
    temperatures: tuple[int, ...] = ()
    """°C at the end of each part; empty: not told."""
    limited_by: tuple[str, ...] = ()
    """Everything that limited the clocks meanwhile, as NVML names it."""

    @property
    def fallen(self) -> float | None:
        """By which share the rate has fallen from the first third of the time to the last.

        0 where the two overlap; None: the parts are too few to tell.
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
        """The median of all parts."""
        spread = 0.0
        if len(self.rates) > 1:
            low, _, high = statistics.quantiles(self.rates, n=4)
            spread = high - low
        return RankRate(place=self.place, rate=statistics.median(self.rates), spread=spread)


class Burn(Section, frozen=True, kw_only=True):
    """The same matrix multiplication on every rank, again and again, each on its own."""

    probe: ClassVar[str] = "burn"

    dtype: str
    size: int
    seconds: float
    ranks: tuple[Burning, ...]
