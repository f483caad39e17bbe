"""Waiting and transfer: what the ranks' times in the same collectives tell together.

The rank that comes last waits for nobody, so the shortest time of all ranks in a collective is the
transfer, and what the others took longer is waiting for that rank (TraceLens and DeepSpeed's logger
use the same minimum). No clock of one host is compared with another's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddoctor.recorder.tape import StepRow

Meetings = Mapping[int, Sequence[tuple[float, float, float, float]]]
"""Of each rank: arrival, seconds, group, operation."""


@dataclass
class Between:
    """What came of the meetings of all ranks."""

    waiting: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of each rank, seconds in each step."""
    waits: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of (waiter, late), over all steps."""


def between(steps: Sequence[Mapping[int, StepRow]]) -> Between:
    """Split the time in collectives of each step; each is given by rank."""
    found = Between()
    for rows in steps:
        step: dict[int, float] = defaultdict(float)
        for met in _matched({rank: row.meetings for rank, row in rows.items()}):
            late = min(met, key=lambda rank: met[rank])
            for rank, seconds in met.items():
                if rank != late:
                    step[rank] += seconds - met[late]
                    found.waits[rank, late] += seconds - met[late]
        for rank in rows:
            found.waiting[rank].append(step[rank])
    return found


def _matched(meetings: Meetings) -> list[dict[int, float]]:
    """Seconds by rank of each collective that several ranks were in."""
    by_group: dict[float, dict[int, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rank, rows in meetings.items():
        for _, seconds, group, operation in rows:
            by_group[group][rank].append((operation, seconds))
    found = []
    for group, ranks in by_group.items():
        if group == 0:
            ranks = {rank: ranks.get(rank, []) for rank in meetings}
        if len(ranks) < 2:
            continue
        names = {tuple(operation for operation, _ in rows) for rows in ranks.values()}
        if len(names) == 1:
            count = len(next(iter(names)))
            found += [
                {rank: rows[place][1] for rank, rows in ranks.items()} for place in range(count)
            ]
        else:
            # They called different ones: only the sums can be compared.
            found.append({rank: sum(one for _, one in rows) for rank, rows in ranks.items()})
    return found
