"""Members of a group, each compared with the median of the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row")


def with_peers(
    rows: Iterable[Row], *, group: Callable[[Row], Any], value: Callable[[Row], float]
) -> Iterator[tuple[Row, float, int]]:
    """Each row, the median value of the others of its group, and the number of these others.

    Rows without peers are left out.
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(group(row), []).append(row)
    for name in sorted(groups):
        members = groups[name]
        ordered = sorted(map(value, members))
        for row in members if len(members) > 1 else ():
            yield row, median_of_others(ordered, value(row)), len(members) - 1


def median_of_others(ordered: Sequence[float], value: float) -> float:
    """The median of all values but one, as ``statistics.median`` takes it.

    ``ordered`` holds all values, at least two, sorted and including ``value``. With one sort, the
    tens of thousands of values of a cluster are each compared to all others quickly.
    """
    left_out = bisect_left(ordered, value)
    count = len(ordered) - 1

    def of_others(place: int) -> float:
        return ordered[place if place < left_out else place + 1]

    middle = of_others(count // 2)
    return middle if count % 2 else (of_others(count // 2 - 1) + middle) / 2
