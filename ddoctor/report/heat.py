"""The rates between pairs as a matrix of the hosts, or of the ranks of one host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from ddoctor.evidence.pairs import Pairs
from ddoctor.evidence.section import Evidence
from ddoctor.report.expectation import APART
from ddoctor.report.places import place_name
from ddoctor.report.wording import quantity

ALL = 64
"""Up to this many are all shown; of more, only the ends of the slowest links."""

OF_MANY = 24
"""At most this many ends of slow links are shown then."""

WITH_FIGURES = 16
"""In a larger matrix the figures appear on hover."""

SHADES = (APART, 0.75, 0.5, 0.25)
"""Shares of the usual rate below which a cell is set in a deeper shade."""


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """The best rate of one direction of a pair."""

    sender: str
    receiver: str
    rate: float
    """GB/s."""

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver}: {quantity(self.rate, 'GB/s')}"


@dataclass(frozen=True, kw_only=True)
class Heat:
    """The links of one measurement."""

    names: tuple[str, ...]
    """Of the rows, which send, and the columns, which receive."""
    links: Mapping[tuple[str, str], HeatCell]
    usual: float
    """Median rate of all links in GB/s."""
    total: int
    """Number of hosts or ranks that were measured."""

    @property
    def slow(self) -> tuple[HeatCell, ...]:
        """Return the outliers among the links, the slowest first."""
        found = (link for link in self.links.values() if link.rate < APART * self.usual)
        return tuple(sorted(found, key=lambda link: link.rate))

    @property
    def figures(self) -> bool:
        """Whether the cells have room for figures."""
        return len(self.names) <= WITH_FIGURES

    def shade(self, link: HeatCell) -> int:
        """Return the shade of a cell, 0: as fast as usual; the higher, the slower."""
        return sum(link.rate < share * self.usual for share in SHADES)


def heats(evidence: Evidence) -> tuple[Heat, ...]:
    """Return a matrix for each measurement between pairs."""
    return tuple(heat for section in evidence.all(Pairs) for heat in _heat(section))


def _heat(section: Pairs) -> Iterator[Heat]:
    several = len({end.place.host for end in section.ends}) > 1
    names = {
        end.place.rank: end.place.host if several else place_name(end.place) for end in section.ends
    }
    links: dict[tuple[str, str], HeatCell] = {}
    for flow in section.flows:
        if flow.rates and flow.sender in names and flow.receiver in names:
            link = HeatCell(
                sender=names[flow.sender], receiver=names[flow.receiver], rate=max(flow.rates)
            )
            known = links.get((link.sender, link.receiver))
            if known is None or link.rate < known.rate:
                links[link.sender, link.receiver] = link
    if links:
        every = tuple(dict.fromkeys(names.values()))
        whole = Heat(
            names=every,
            links=links,
            usual=median(link.rate for link in links.values()),
            total=len(every),
        )
        yield whole if len(every) <= ALL else _of_slow_links(whole)


def _of_slow_links(heat: Heat) -> Heat:
    ends = dict.fromkeys(end for link in heat.slow for end in (link.sender, link.receiver))
    few = set(tuple(ends)[:OF_MANY])
    return Heat(
        names=tuple(name for name in heat.names if name in few),
        links=heat.links,
        usual=heat.usual,
        total=heat.total,
    )
