"""What the others of a group reach, to hold one of them against."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def median_of_others(ordered: Sequence[float], value: float) -> float:
    """The median of all values but one, as ``statistics.median`` takes it.

    ``ordered`` are all of them, at least two, sorted and with ``value`` among them: sorted once, a
    cluster's tens of thousands are each compared with all others in no time.
    """
    left_out = bisect_left(ordered, value)
    count = len(ordered) - 1

    def of_others(place: int) -> float:
        return ordered[place if place < left_out else place + 1]

    middle = of_others(count // 2)
    return middle if count % 2 else (of_others(count // 2 - 1) + middle) / 2
