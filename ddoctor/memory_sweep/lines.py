"""What a training step holds in memory, as lines of its samples.

Pure: bytes in, sizes out. What is held after each operator is fixed + samples × per sample, but for
rounding (blocks of 512 B, segments of 2 and 20 MiB: torch's CUDACachingAllocator). The most of the
whole step is no line: of few samples the gradients at its end make the peak, of many the
activations at its beginning. So each operator is foretold by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.memory_sweep.search import NEAR


class MemoryLines:
    """One rank, by the sizes that fitted there."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, ...]] = {}

    def record(self, size: int, held: Sequence[int]) -> None:
        """Bytes after each operator of a step."""
        self._held[size] = tuple(held)

    def sure(self, limit: int) -> int:
        """What fits into so many bytes even if none of them are fixed; 0: nothing is known."""
        size = max(self._held, default=0)
        return size * limit // max(self._held[size]) if size else 0

    def reach(self, limit: int) -> int | None:
        """The largest size that fits by all lines; None: nothing is known, or nothing grows."""
        found = [int((limit - fixed) / each) for fixed, each in self._each() if each > 0]
        return max(0, min(found)) if found else None

    @property
    def decisive(self) -> tuple[float, float] | None:
        """Fixed and per sample, in bytes, of the operator with most at the largest size; None:
        fewer than two sizes are known."""
        size = max(self._held, default=0)
        if len(self._held) < 2:
            return None
        return max(self._each(), key=lambda line: line[0] + line[1] * size)

    def _each(self) -> Iterator[tuple[float, float]]:
        """Through the largest size and the next one that is not too near to it.

        Where there is only one, nothing is taken for fixed: that foretells too little, never too
        much.
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
