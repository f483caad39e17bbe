"""Chooses the next micro-batch to try, until the largest one that fits is known.

Pure: sizes in, sizes out. Two sizes forecast the limit (``ddoctor.memory_sweep.lines``), and
trials on both sides of it find it exactly. Rounding by the allocator, and kernels that switch
algorithm at some size, make the forecast miss; then the misses narrow the range.
"""

from __future__ import annotations

TRIALS = 6
"""This many trials suffice if the forecast is nearly right."""
MOST_TRIALS = 10
"""If it is not, more trials follow while the open range is wider than ``NEAR``."""
NEAR = 0.05

# The forecast of a size many times larger than the tried ones is poor. So a size in between is
# tried first, and never one more than this many times as large.
FAR = 4
REACH = 16
# From a size that was too large, back by this share of the open range; four times as far each time.
BACK = 0.08
FURTHER = 4


class Search:
    """The search for the largest size from 1 to ``most`` that fits."""

    def __init__(self, *, first: int, most: int) -> None:
        self._first = first
        self._tried: dict[int, bool] = {}
        self._foretold: int | None = None
        self._sure = 0
        self.most = most
        """It may shrink and grow during the search."""

    @property
    def trials(self) -> int:
        """Return the number of tried sizes."""
        return len(self._tried)

    @property
    def largest(self) -> int:
        """Return the largest size that fitted; 0: none."""
        return max((size for size, fits in self._tried.items() if fits), default=0)

    @property
    def too_large(self) -> int | None:
        """Return the smallest size that did not fit; None: all fitted."""
        return min((size for size, fits in self._tried.items() if not fits), default=None)

    def record(self, size: int, *, fits: bool) -> None:
        """Record the result of a trial; the last result of a size counts."""
        self._tried[size] = fits

    def foretell(self, largest: int | None, *, sure: int) -> None:
        """Set the forecast: the largest size that may fit (None: any); ``sure``: one that fits."""
        self._foretold, self._sure = largest, sure

    def next(self) -> int | None:
        """Return the size to try next; None: the search is done."""
        low, high = self.largest, min(self.too_large or self.most + 1, self.most + 1)
        enough = self.trials >= TRIALS and high <= (1 + NEAR) * low + 1
        if high - low <= 1 or enough or self.trials >= MOST_TRIALS:
            return None
        return min(max(self._guess(low, high), low + 1), high - 1)

    def _guess(self, low: int, high: int) -> int:
        if not low:
            return self._first if self._first not in self._tried else 1
        guess = high if self._foretold is None else self._foretold
        failures = sum(not fits for fits in self._tried.values())
        if guess > FAR * low and not failures:
            early = self.trials <= 2
            return min(max(self._sure, guess // FAR) if early else guess, REACH * low)
        if guess < high or not failures:
            return guess
        back = max(1, round(BACK * (high - low))) * FURTHER ** (failures - 1)
        return high - back if high - back > low else (low + high) // 2
