"""Words and units for the sentences of findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddoctor.evidence.probes import RankPlace
from ddoctor.models import Where

MIB = 2**20
GIB = 2**30
EXACT = 100
"""From this number on, digits behind the point say nothing."""


def figure(value: float) -> str:
    """A measured number with the digits that mean something."""
    return f"{value:,.0f}" if value >= EXACT else f"{value:.3g}"


def few(names: Sequence[str], most: int = 4, separator: str = ", ") -> str:
    """The first of these names, and how many there are beyond: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def where(places: Iterable[RankPlace]) -> Where:
    """The hosts, ranks and devices of these ranks."""
    several = tuple(places)
    return Where(
        hosts=tuple(sorted({place.host for place in several})),
        ranks=tuple(place.rank for place in several),
        devices=tuple(dict.fromkeys(place.device for place in several)),
    )
