"""How many of a run's first steps do not count."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

# The first steps allocate, compile and start workers. 15 % above the following steps is noise; 67 %
# in a single step is not.
FEWEST, MOST = 3, 30
WINDOW = 5
SETTLED = 1.15
LIKE_THE_OTHERS = 1.67


def warm_up(seconds: Sequence[float], wanted: int) -> int | None:
    """Number of warm-up steps, which do not count; None: too few steps to decide."""
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
    """The warm-up of a finished run: at most half of its steps."""
    found = warm_up(seconds, wanted)
    return min(FEWEST if found is None else found, len(seconds) // 2)
