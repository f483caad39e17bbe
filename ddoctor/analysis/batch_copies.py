"""Copies of batches to the GPU that take a notable part of a recorded step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ddoctor.analysis.derived import Derived
from ddoctor.analysis.loader_throughput import JUDGED, NOTABLE
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.steps import HotLine, Lines, RankSteps, Steps

GB = 1e9


@dataclass(frozen=True, kw_only=True)
class RankCopies:
    """The copies of one rank."""

    steps: RankSteps
    share: float
    """Share of the step, 0 to 1."""
    loaders: Sequence[Loader]
    """Those whose batches it trains on."""
    lines: Sequence[HotLine]
    """The sampled lines, the most frequent first."""

    @property
    def pinned(self) -> bool:
        """Whether most bytes came from pinned memory; without their number, as its loaders say."""
        pinned, pageable = sum(self.steps.pinned_bytes), sum(self.steps.pageable_bytes)
        if pinned or pageable:
            return pinned > pageable
        return all(one.pin_memory for one in self.loaders)

    @property
    def copied(self) -> str:
        """The bytes of a step and their rate; empty: not known."""
        both = zip(self.steps.pinned_bytes, self.steps.pageable_bytes, strict=True)
        copied = median(map(sum, both)) if self.steps.pinned_bytes else 0
        seconds = self.steps.typical("to-device")
        return f"{copied / GB:.3g} GB at {copied / GB / seconds:.3g} GB/s" if copied else ""


@dataclass(frozen=True, kw_only=True)
class BatchCopies(Derived):
    """The ranks that copy for a notable part of their steps, the longest first."""

    steps: int
    ranks: Sequence[RankCopies]
    all_ranks: Sequence[RankSteps]

    @classmethod
    def derive(cls, steps: Steps, lines: Lines | None, loading: Loading | None) -> BatchCopies:
        """Read them from steps on GPUs."""
        found = [
            RankCopies(
                steps=rank,
                share=rank.typical("to-device") / median(rank.seconds),
                loaders=[
                    one
                    for one in (loading.loaders if loading is not None else ())
                    if one.rank == rank.place.rank and one.taken
                ],
                lines=lines.of(rank.place.rank, "to-device") if lines is not None else (),
            )
            for rank in steps.ranks
            if steps.count >= JUDGED and rank.place.device.startswith("cuda")
        ]
        late = [one for one in found if one.share >= NOTABLE]
        late.sort(key=lambda one: -one.share)
        return cls(steps=steps.count, ranks=late, all_ranks=steps.ranks)
