"""Chooses the next micro-batch to try, until the largest one that fits is known.

Pure: sizes and bytes in, sizes out. Two sizes forecast the limit (``MemoryLines``), and trials on
both sides of it find it exactly. Rounding by the allocator (blocks of 512 B, segments of 2 and
20 MiB: torch's CUDACachingAllocator), and kernels that switch algorithm at some size, make the
forecast miss; then the misses narrow the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


class MemoryLines:
    """The memory of a step as linear functions of its samples, from the sizes that fitted a rank.

    The peak of a step is not linear: with few samples, the gradients at its end are the peak; with
    many, the activations at its beginning. So each operator is forecast separately.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, ...]] = {}

    def record(self, size: int, held: Sequence[int]) -> None:
        """Record the bytes after each operator of a step."""
        self._held[size] = tuple(held)

    def sure(self, limit: int) -> int:
        """Return the size that fits this limit for sure, with no fixed part; 0: not known."""
        size = max(self._held, default=0)
        return size * limit // max(self._held[size]) if size else 0

    def reach(self, limit: int) -> int | None:
        """Return the largest size that fits by all lines; None: not known, or no growth."""
        found = [int((limit - fixed) / each) for fixed, each in self._each() if each > 0]
        return max(0, min(found)) if found else None

    @property
    def decisive(self) -> tuple[float, float] | None:
        """Return fixed bytes and bytes per sample of the operator with most memory at the largest
        size; None: fewer than two sizes are known.
        """
        size = max(self._held, default=0)
        if len(self._held) < 2:
            return None
        return max(self._each(), key=lambda line: line[0] + line[1] * size)

    def _each(self) -> Iterator[tuple[float, float]]:
        """Yield the lines through the largest size and the next one that is not too near to it.

        With only one size, the fixed part counts as 0: that forecasts too few samples, never too
        many.
        """
        if not self._held:
            return
        high = max(self._held)
        apart = (size for size in self._held if size <= (1 - NEAR) * high)
        low = max(apart, default=min(self._held))
        alike = len(self._held[low]) == len(self._held[high])
        least, most = (self._held[one] if alike else (max(self._held[one]),) for one in (low, high))
        for before, after in zip(least, most, strict=True):
            each = (after - before) / (high - low) if high > low else after / high
            yield after - each * high, each
