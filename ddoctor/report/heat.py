"""The rates between pairs as a matrix of the hosts, or of the ranks of one host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf
from statistics import median

from ddoctor.evidence.cluster_probes import Pairs
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
class Heat:
    """The links of one measurement."""

    names: tuple[str, ...]
    """Of the rows, which send, and the columns, which receive."""
    links: Mapping[tuple[str, str], float]
    """The best rate in GB/s of each sender and receiver."""
    usual: float
    """Median rate of all links in GB/s."""
    total: int
    """Number of hosts or ranks that were measured."""

    @cached_property
    def slow(self) -> tuple[tuple[str, str], ...]:
        """Return the outliers among the links, the slowest first."""
        found = (ends for ends, rate in self.links.items() if rate < APART * self.usual)
        return tuple(sorted(found, key=lambda ends: self.links[ends]))

    @property
    def figures(self) -> bool:
        """Whether the cells have room for figures."""
        return len(self.names) <= WITH_FIGURES

    def shade(self, rate: float) -> int:
        """Return the shade of a cell, 0: as fast as usual; the higher, the slower."""
        return sum(rate < share * self.usual for share in SHADES)

    def text(self, ends: tuple[str, str]) -> str:
        """Return one line, such as ``node-1 → node-2: 0.5 GB/s``."""
        return f"{ends[0]} → {ends[1]}: {quantity(self.links[ends], 'GB/s')}"


def heats(evidence: Evidence) -> tuple[Heat, ...]:
    """Return a matrix for each measurement between pairs."""
    return tuple(heat for section in evidence.all(Pairs) for heat in _heat(section))


def _heat(section: Pairs) -> Iterator[Heat]:
    several = len({end.place.host for end in section.ends}) > 1
    names = {
        end.place.rank: end.place.host if several else place_name(end.place) for end in section.ends
    }
    links: dict[tuple[str, str], float] = {}
    for flow in section.flows:
        if flow.rates and flow.sender in names and flow.receiver in names:
            ends = names[flow.sender], names[flow.receiver]
            links[ends] = min(links.get(ends, inf), max(flow.rates))
    if links:
        every = tuple(dict.fromkeys(names.values()))
        heat = Heat(names=every, links=links, usual=median(links.values()), total=len(every))
        if len(every) > ALL:
            few = set([*dict.fromkeys(chain.from_iterable(heat.slow))][:OF_MANY])
            heat = replace(heat, names=tuple(name for name in every if name in few))
        yield heat
