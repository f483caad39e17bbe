"""Rank by rank: the rates of every rank, or of the outliers among many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from ddoctor.evidence.probes import Burn, HostToDevice, Matmul, MemoryBandwidth, RankRate
from ddoctor.evidence.section import Evidence
from ddoctor.report import expectation
from ddoctor.report.expectation import APART
from ddoctor.report.places import listed, place_name
from ddoctor.report.wording import quantity, span

ALL = 64
"""Up to this many ranks are all shown; of more, only the outliers."""

APART_SHOWN = 32
"""At most this many outliers are shown, the furthest behind first."""

BAR_MARGIN = 1.1
"""Room beyond the fastest rank, so that the mark of the median is visible."""

SHARES = {"lowest": 0.0, "1 %": 0.01, "10 %": 0.1, "90 %": 0.9, "highest": 1.0}
"""The ranks that show the spread of all, by their position in sorted order."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One kind of rate, measured on every rank."""

    label: str
    unit: str = "GB/s"
    rates: tuple[RankRate, ...]
    detail: str = ""
    published: float | None = None
    """The published rate of this GPU model."""

    @cached_property
    def by_rank(self) -> Mapping[int, float]:
        """Return the rates by rank, the slowest first."""
        return {row.place.rank: row.rate for row in sorted(self.rates, key=lambda row: row.rate)}

    @cached_property
    def median(self) -> float:
        return median(row.rate for row in self.rates)

    def at(self, share: float) -> float:
        """Return the rate at this position in sorted order, 0 to 1."""
        return tuple(self.by_rank.values())[round(share * (len(self.by_rank) - 1))]

    def bar(self, rate: float) -> float:
        """Return the length of a rate's bar, 0 to 1."""
        return rate / (self.at(1.0) * BAR_MARGIN) if rate else 0.0

    def behind(self, rate: float | None) -> float:
        """Return the share of the median that the rate lacks; 0: it is no outlier."""
        return 0.0 if rate is None or rate >= APART * self.median else 1 - rate / self.median

    def __str__(self) -> str:
        text = quantity(self.median, self.unit) + (f" {self.detail}" if self.detail else "")
        if self.published is not None:
            text += f" (published: {quantity(self.published)})"
        if len(self.rates) == 1:
            return text
        spread = span(quantity(self.at(0.0)), quantity(self.at(1.0)))
        text += f", median of {len(self.rates)}" + (f" ({spread})" if " to " in spread else "")
        slowest = min(self.rates, key=lambda row: row.rate)
        if self.behind(slowest.rate):
            several = len({row.place.host for row in self.rates}) > 1
            text += f", slowest {place_name(slowest.place, with_host=several)}"
        return text


def comparisons(evidence: Evidence) -> tuple[Comparison, ...]:
    """Return every kind of rate that was measured on each rank, over all hosts."""
    matmuls = evidence.all(Matmul)
    copies = evidence.all(HostToDevice)
    computed = tuple(row for section in matmuls for row in section.rates)
    moved = tuple(row for section in evidence.all(MemoryBandwidth) for row in section.rates)
    burns = evidence.all(Burn)
    gpu = expectation.model(row.place for row in (*computed, *moved))
    dtypes = sorted({section.dtype for section in matmuls})
    found = (
        Comparison(
            label="matmul",
            unit="TFLOP/s",
            rates=computed,
            detail=listed(dtypes),
            published=gpu.achievable if gpu and dtypes == ["bfloat16"] else None,
        ),
        Comparison(
            label="burn",
            unit="TFLOP/s",
            rates=tuple(rank.sustained for section in burns for rank in section.ranks),
            detail=listed(sorted({f"{one.dtype} for {one.seconds:.0f} s" for one in burns})),
        ),
        Comparison(label="memory copy", rates=moved, published=gpu.copied if gpu else None),
        Comparison(
            label="host to device",
            rates=tuple(row for section in copies for row in section.to_device),
        ),
        Comparison(
            label="device to host",
            rates=tuple(row for section in copies for row in section.to_host),
        ),
    )
    return tuple(comparison for comparison in found if comparison.rates)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The table: a row per rank, a column per comparison."""

    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    spread: tuple[tuple[str, tuple[float, ...]], ...]
    """The spread of all ranks' rates, if not every rank is shown."""
    total: int
    apart: int
    """Number of ranks that are outliers in any comparison."""


def table(compared: Sequence[Comparison]) -> Ranks:
    """Return every rank in order; of many, the outliers, the furthest behind first."""
    places = {row.place.rank: row.place for comparison in compared for row in comparison.rates}
    several = len({place.host for place in places.values()}) > 1
    behind = {rank: max(one.behind(one.by_rank.get(rank)) for one in compared) for rank in places}
    apart = sorted((rank for rank in places if behind[rank]), key=lambda rank: -behind[rank])
    few = len(places) <= ALL
    return Ranks(
        rows=tuple(
            (
                place_name(places[rank], with_host=several),
                tuple(one.by_rank.get(rank) for one in compared),
            )
            for rank in (sorted(places) if few else apart[:APART_SHOWN])
        ),
        spread=tuple(
            (label, tuple(one.at(share) for one in compared))
            for label, share in (() if few else SHARES.items())
        ),
        total=len(places),
        apart=len(apart),
    )
