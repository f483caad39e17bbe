"""The memory of a training step as linear functions of its samples.

Pure: bytes in, sizes out. Memory after each operator is fixed + samples × per sample, except
for rounding (blocks of 512 B, segments of 2 and 20 MiB: torch's CUDACachingAllocator). The peak of
a step is not linear: with few samples, the gradients at its end are the peak; with many, the
activations at its beginning. So each operator is forecast separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.memory_sweep.search import NEAR


class MemoryLines:
    """The lines of one rank, from the sizes that fitted there."""

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
