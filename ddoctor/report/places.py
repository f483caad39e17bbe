"""Hosts and ranks in few words, however many they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from ddoctor.evidence.probes import RankPlace

MANY = 6
"""A list of more names than this is cut to its first ones, and the number of the others."""


def listed(names: Sequence[str]) -> str:
    """Names with commas; the tail of a long list as a number."""
    if len(names) <= MANY:
        return ", ".join(names)
    return f"{', '.join(names[:MANY])} and {len(names) - MANY} more"


def hosts(names: Sequence[str]) -> str:
    """Host names; many of them as Slurm writes them: ``4095 hosts (node-[0000-2303,2305-4095])``.

    Where even that is long, the first ones and the number of the others.
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
    """Say ``rank 3``, ``ranks 0–2, 7``; of many that do not follow one another the first ones."""
    if len(numbers) <= 1:
        return "".join(f"rank {number}" for number in numbers)
    runs = tuple(_runs(sorted(set(numbers))))
    if len(runs) <= MANY:
        return f"ranks {', '.join(map(_span, runs))}"
    rest = sum(map(len, runs[MANY:]))
    return f"ranks {', '.join(map(_span, runs[:MANY]))} and {rest} more"


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers with their runs folded, say ``0–3, 7``."""
    return ", ".join(map(_span, _runs(sorted(set(numbers)))))


def place_name(place: RankPlace, *, with_host: bool = False) -> str:
    """A GPU by its device; a rank without one by its number."""
    name = f"rank {place.rank}" if place.device == "cpu" else place.device
    return f"{place.host} {name}" if with_host else name


def _series(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The spans of the last number, by what stands before and after it; a name may have none."""
    numbers: dict[tuple[str, str, int], list[int]] = {}
    series: dict[tuple[str, str], list[str]] = {}
    for name in names:
        found = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        if found is None:
            series[name, ""] = []
        else:
            numbers.setdefault((found[1], found[3], len(found[2])), []).append(int(found[2]))
    for (head, tail, width), those in numbers.items():
        for run in _runs(sorted(set(those))):
            ends = dict.fromkeys((run[0], run[-1]))
            spans = series.setdefault((head, tail), [])
            spans.append("-".join(str(end).zfill(width) for end in ends))
    return series


def _span(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}"


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        yield tuple(number for _, number in group)
