"""Which rank waited for which: a matrix of the ranks, or of the few that matter among many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ddoctor.evidence.section import Evidence
from ddoctor.report.step_breakdown import Unit, percent, step_breakdown

ALL = 32
"""Up to this many ranks are all shown; of more, only the ends of the longest waits."""

OF_MANY = 16
"""At most this many rows, and this many columns, are shown then."""

SHADES = (0.1, 0.2, 0.4, 0.6)
"""Shares of the step from which on a cell has a deeper shade.

Less than a tenth is no slowdown (docs/decisions.md)."""


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
    unit: Unit
    total: int
    """Number of ranks of the run."""

    def shade(self, seconds: float) -> int:
        """Return the shade of a cell, 0: as usual; the higher, the longer."""
        return sum(seconds >= share * self.step for share in SHADES)

    @cached_property
    def latest(self) -> tuple[int, float]:
        """Return the rank that costs most, and the seconds that each other one waits for it."""
        whole: dict[int, float] = defaultdict(float)
        for (_, late), seconds in self.seconds.items():
            whole[late] += seconds
        rank = max(whole, key=lambda one: whole[one])
        return rank, whole[rank] / (self.total - 1)

    @property
    def notable(self) -> bool:
        """Whether one rank alone costs the others a tenth of the step or more."""
        return self.shade(self.latest[1]) > 0

    def __str__(self) -> str:
        rank, seconds = self.latest
        return (
            f"the ranks wait most for rank {rank}: {self.unit(seconds)} a step "
            f"({percent(seconds / self.step)}), the mean of the others"
        )


def wait_matrix(evidence: Evidence) -> WaitMatrix | None:
    """Return which rank of the recorded run waited for which; None: that was not recorded."""
    breakdown = step_breakdown(evidence)
    if breakdown is None or len(breakdown.bars) == 1 or not breakdown.steps.waits:
        return None
    steps = breakdown.steps
    seconds = {(one.waiter, one.late): one.seconds / steps.count for one in steps.waits}
    ranks = tuple(breakdown.means)
    waiters, late = ranks, ranks
    if len(ranks) > ALL:
        ends = zip(*sorted(seconds, key=lambda ends: -seconds[ends]), strict=True)
        waiters, late = (tuple(sorted([*dict.fromkeys(one)][:OF_MANY])) for one in ends)
    return WaitMatrix(
        waiters=waiters,
        late=late,
        seconds=seconds,
        step=steps.step,
        unit=breakdown.unit,
        total=len(ranks),
    )
