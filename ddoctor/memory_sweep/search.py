"""Which micro-batch to try next, until the largest one that fits is known.

Pure: sizes in, sizes out. Two sizes foretell where the limit is (``ddoctor.memory_sweep.lines``),
and what is tried there, on both sides of it, tells exactly. What the allocator rounds, and kernels
that take another way from some size on, make the forecast miss; then the misses narrow it down.
"""

from __future__ import annotations

TRIALS = 6
"""So many settle it where the forecast is nearly right."""
MOST_TRIALS = 10
"""Where it is not, more are tried as long as the answer is wider than ``NEAR``."""
NEAR = 0.05

# A size many times as large as those that were tried is foretold badly. So one in between is tried
# first, and never one as many times as large as this.
FAR = 4
REACH = 16
# From a size that was too large, back by this part of what is open; four times as far each time.
BACK = 0.08
FURTHER = 4


class Search:
    """For the largest size from 1 to ``most`` that fits."""

    def __init__(self, *, first: int, most: int) -> None:
        self._first = first
        self._tried: dict[int, bool] = {}
        self._foretold: int | None = None
        self._sure = 0
        self.most = most
        """May become less on the way, and more again."""

    @property
    def trials(self) -> int:
        """How many sizes were tried."""
        return len(self._tried)

    @property
    def largest(self) -> int:
        """That was seen to fit; 0: none."""
        return max((size for size, fits in self._tried.items() if fits), default=0)

    @property
    def too_large(self) -> int | None:
        """The smallest size that was seen not to fit; None: all fitted."""
        return min((size for size, fits in self._tried.items() if not fits), default=None)

    def record(self, size: int, *, fits: bool) -> None:
        """What came of a trial; the last word on a size counts."""
        self._tried[size] = fits

    def foretell(self, largest: int | None, *, sure: int) -> None:
        """By what is known now: what may fit (None: whatever is tried), and what does for sure."""
        self._foretold, self._sure = largest, sure

    def next(self) -> int | None:
        """The size to try; None: it is settled, or as good as settled."""
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
