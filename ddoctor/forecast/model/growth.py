"""The memory of a strategy by the samples of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The memory of one strategy, from steps with two numbers of samples.

    Tensor memory grows linearly with the samples in each phase of the step. Fragmentation does not.
    """

    samples: int
    peaks: Mapping[str, int]
    """Bytes in use at the peak of each phase with this number of samples."""
    slopes: Mapping[str, float]
    """Bytes that one more sample adds to them."""
    gradients: int
    """Bytes of gradients that stay while the next micro-batch of the same step computes."""
    unused: float
    """Bytes that the allocator cannot use, as a share of those in use."""

    def used(self, samples: int) -> float:
        """Return bytes in use at the peak with this number of samples."""
        more = samples - self.samples
        return max(size + more * self.slopes[phase] for phase, size in self.peaks.items())

    def total(self, samples: int, accumulation: int = 1) -> int:
        """Return bytes at the peak with this number of samples, fragmentation as with few."""
        kept = self.gradients if accumulation > 1 else 0
        return round((self.used(samples) + kept) * (1 + self.unused))

    def most(self, memory: float, unused: float) -> int:
        """Return the largest number of samples in this memory; 0: none fits."""
        room = memory / (1 + unused)
        found = []
        for phase, size in self.peaks.items():
            if (more := self.slopes[phase]) > 0:
                found.append(int(self.samples + (room - size) / more))
            elif size > room:
                return 0
        return max(0, min(found, default=self.samples))
