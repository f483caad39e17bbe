"""Which rank waited for which: a matrix of the ranks, or of the few that matter among many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.report.step_breakdown import Unit, percent, unit

ALL = 32
"""Up to this many ranks are all shown; of more, only the ends of the longest waits."""

OF_MANY = 16
"""At most this many rows, and this many columns, are shown then."""

SHADES = (0.1, 0.2, 0.4, 0.6)
"""Shares of the step from which on a cell has a deeper shade.

Less than a tenth is no slowdown (docs/decisions.md)."""


@dataclass(frozen=True, kw_only=True)
class WaitedFor:
    """One rank that others waited for."""

    rank: int
    seconds: float
    """Mean wait of each other rank for it, per step."""
    share: float
    """Share of the step, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class WaitMatrix:
    """Seconds per step in which one rank waited for another."""

    waiters: tuple[int, ...]
    """The rows."""
    late: tuple[int, ...]
    """The columns: the ranks that arrived last."""
    seconds: Mapping[tuple[int, int], float]
    """By waiter and straggler: the mean of all judged steps."""
    step: float
    total: int
    """Number of ranks of the run."""

    @property
    def unit(self) -> Unit:
        return unit(self.step)

    def shade(self, seconds: float) -> int:
        """Return the shade of a cell, 0: as usual; the higher, the longer."""
        return sum(seconds >= share * self.step for share in SHADES)

    @property
    def latest(self) -> tuple[WaitedFor, ...]:
        """Return the stragglers, the most costly one first."""
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
        """Whether one rank alone costs the others a tenth of the step or more."""
        return self.shade(self.latest[0].seconds) > 0

    def __str__(self) -> str:
        first = self.latest[0]
        return (
            f"the ranks wait most for rank {first.rank}: {self.unit(first.seconds)} a step "
            f"({percent(first.share)}), the mean of the others"
        )


def wait_matrices(evidence: Evidence) -> tuple[WaitMatrix, ...]:
    """Return the matrix of each run that recorded which rank waited for which."""
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
