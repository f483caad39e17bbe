"""The median of the other members of a group, to compare one member with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


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
