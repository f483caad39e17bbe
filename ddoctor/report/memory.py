"""The memory of each rank during training: process, workers, GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Growth, MemoryOverTime

KINDS: Mapping[str, Callable[[Growth], tuple[float, ...]]] = {
    "process": lambda growth: growth.resident,
    "workers": lambda growth: growth.workers,
    "GPU": lambda growth: growth.device,
}

DRAWN = 8
"""The number of drawn ranks: those whose memory grew most."""


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """One kind of memory of one rank."""

    rank: int
    times: tuple[float, ...]
    """Seconds."""
    amounts: tuple[float, ...]
    """MiB."""

    @property
    def growth(self) -> float:
        """Return by how many MiB the last quarter is above the first."""
        quarter = -(-len(self.amounts) // 4)
        return median(self.amounts[-quarter:]) - median(self.amounts[:quarter])


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One kind of memory of all ranks."""

    kind: str
    lines: tuple[MemoryRow, ...]
    """The ranks, the one with the largest growth first."""

    @property
    def drawn(self) -> tuple[MemoryRow, ...]:
        return self.lines[:DRAWN]

    @property
    def usual(self) -> float:
        """Return MiB at the end, the median of all ranks."""
        return median(line.amounts[-1] for line in self.lines)


def panels(evidence: Evidence) -> tuple[Panel, ...]:
    """Return a panel for each kind of memory that any rank had."""
    growths = [growth for section in evidence.all(MemoryOverTime) for growth in section.ranks]
    found = []
    for kind, of in KINDS.items():
        lines = [_line(growth, of(growth)) for growth in growths if len(of(growth)) > 1]
        if any(any(line.amounts) for line in lines):
            lines.sort(key=lambda line: -line.growth)
            found.append(Panel(kind=kind, lines=tuple(lines)))
    return tuple(found)


def _line(growth: Growth, amounts: tuple[float, ...]) -> MemoryRow:
    return MemoryRow(
        rank=growth.rank,
        times=growth.times[: len(amounts)],
        amounts=amounts,
    )
