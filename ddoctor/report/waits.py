"""Who waited for whom: a matrix of the ranks, or of the few that matter among many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.report.step_breakdown import Unit, percent, unit

ALL = 32
"""So many ranks are shown whole; of more, only the ends of the longest waits."""

OF_MANY = 16
"""So many of those that were waited for, and of those that waited, are shown then."""

SHADES = (0.1, 0.2, 0.4, 0.6)
"""Shares of the step from which on a cell is set in a deeper shade: what is below a tenth is no
slowdown (docs/decisions.md)."""


@dataclass(frozen=True, kw_only=True)
class WaitedFor:
    """One rank that others waited for."""

    rank: int
    seconds: float
    """That each of the others waited for it in a step, in the mean."""
    share: float
    """Of the step."""


@dataclass(frozen=True, kw_only=True)
class WaitMatrix:
    """Seconds of a step in which one rank waited for another."""

    waiters: tuple[int, ...]
    """The rows."""
    late: tuple[int, ...]
    """The columns: those that came last."""
    seconds: Mapping[tuple[int, int], float]
    """By waiter and late rank: the mean of all judged steps."""
    step: float
    total: int
    """Ranks of the run."""

    @property
    def unit(self) -> Unit:
        return unit(self.step)

    def shade(self, seconds: float) -> int:
        """0: as usual; the deeper, the longer."""
        return sum(seconds >= share * self.step for share in SHADES)

    @property
    def latest(self) -> tuple[WaitedFor, ...]:
        """The ranks that were waited for, the one that cost the others most first."""
        whole: dict[int, float] = defaultdict(float)
        for (_, late), seconds in self.seconds.items():
            whole[late] += seconds
        others = self.total - 1
        return tuple(
            WaitedFor(rank=rank, seconds=seconds / others, share=seconds / others / self.step)
            for rank, seconds in sorted(whole.items(), key=lambda item: -item[1])
        )

    @property
    def notable(self) -> bool:
        """Whether one rank alone costs the others a tenth of the step."""
        return self.shade(self.latest[0].seconds) > 0

    def __str__(self) -> str:
        first = self.latest[0]
        return (
            f"most was waited for rank {first.rank}: {self.unit(first.seconds)} a step "
            f"({percent(first.share)}), the mean of the others"
        )


def wait_matrices(evidence: Evidence) -> tuple[WaitMatrix, ...]:
    """Of each run of several ranks in which waits were told apart."""
    return tuple(
        _matrix(steps)
        for steps in evidence.all(Steps)
        if steps.count and steps.step > 0 and len(steps.ranks) > 1 and steps.waits
    )


def _matrix(steps: Steps) -> WaitMatrix:
    seconds = {(one.waiter, one.late): one.seconds / steps.count for one in steps.waits}
    ranks = tuple(sorted(rank.place.rank for rank in steps.ranks))
    waiters, late = ranks, ranks
    if len(ranks) > ALL:
        longest = sorted(seconds, key=lambda ends: -seconds[ends])
        waiters = tuple(sorted(tuple(dict.fromkeys(waiter for waiter, _ in longest))[:OF_MANY]))
        late = tuple(sorted(tuple(dict.fromkeys(late for _, late in longest))[:OF_MANY]))
    return WaitMatrix(
        waiters=waiters, late=late, seconds=seconds, step=steps.step, total=len(ranks)
    )
