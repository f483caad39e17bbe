"""Short lists of hosts and ranks, however many there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddoctor.analysis import endings
from ddoctor.evidence.host import cpu_list
from ddoctor.evidence.probes import RankPlace

MANY = 6
"""A longer list is cut to its first names and the number of the others."""


def listed(names: Sequence[str]) -> str:
    """Return names with commas; of a long list, the first ones and the number of the others."""
    if len(names) <= MANY:
        return ", ".join(names)
    return f"{', '.join(names[:MANY])} and {len(names) - MANY} more"


def hosts(names: Sequence[str]) -> str:
    """Return host names; many as in Slurm: ``4095 hosts (node-[0000-2303,2305-4095])``.

    If even that is long, return the first ones and the number of the others.
    """
    if len(names) <= MANY:
        return ", ".join(names)
    series = _series(names)
    if sum(len(spans) or 1 for spans in series.values()) > MANY:
        return listed(names)
    folded = (
        f"{head}[{','.join(spans)}]{tail}" if spans else head
        for (head, tail), spans in series.items()
    )
    return f"{len(names)} hosts ({', '.join(folded)})"


def ranks(numbers: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2, 7``; of many spans, the first ones and a count."""
    spans = cpu_list(set(numbers)).split(",")
    if len(spans) <= MANY:
        return endings.ranks(set(numbers)) if numbers else ""
    last = int(spans[MANY - 1].rpartition("-")[2])
    return f"ranks {', '.join(spans[:MANY])} and {sum(n > last for n in set(numbers))} more"


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers with their runs folded: ``0-3, 7``."""
    return cpu_list(set(numbers)).replace(",", ", ")


def place_name(place: RankPlace, *, with_host: bool = False) -> str:
    """Return a GPU by its device; a rank without GPU by its number."""
    name = f"rank {place.rank}" if place.device == "cpu" else place.device
    return f"{place.host} {name}" if with_host else name


def _series(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Return the spans of the last number by the text around it; a name may have none."""
    numbers: dict[tuple[str, str, int], list[int]] = {}
    series: dict[tuple[str, str], list[str]] = {}
    for name in names:
        found = re.fullmatch(r"(.*?)([0-9]{1,18})(\D*)", name)
        if found is None:
            series[name, ""] = []
        else:
            numbers.setdefault((found[1], found[3], len(found[2])), []).append(int(found[2]))
    for (head, tail, width), those in numbers.items():
        for span in cpu_list(set(those)).split(","):
            ends = (end.zfill(width) for end in span.split("-"))
            series.setdefault((head, tail), []).append("-".join(ends))
    return series
