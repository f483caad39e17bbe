"""When the steps have found their pace."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

# The first steps allocate, compile and start workers. A sixth part more than what follows is noise;
# two thirds more in a single step is not.
FEWEST, MOST = 3, 30
WINDOW = 5
SETTLED = 1.15
LIKE_THE_OTHERS = 1.67


def warm_up(seconds: Sequence[float], wanted: int) -> int | None:
    """How many steps at the beginning do not count; None: it is too early to tell."""
    window = max(1, min(WINDOW, wanted // 4))
    for first in range(FEWEST, MOST):
        ahead, later = seconds[first : first + window], seconds[first + window : first + 2 * window]
        if len(later) < window:
            return None
        typical = median(later)
        if median(ahead) <= SETTLED * typical and seconds[first] <= LIKE_THE_OTHERS * typical:
            return first
    return MOST


def settled(seconds: Sequence[float], wanted: int) -> int:
    """The same for steps that have come to their end: at most half of them are the warm-up."""
    found = warm_up(seconds, wanted)
    return min(FEWEST if found is None else found, len(seconds) // 2)
