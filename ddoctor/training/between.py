"""Split the ranks' times in the same collectives into waiting and transfer.

The rank that arrives last does not wait, so the shortest time of all ranks in a collective is the
transfer. The rest of the other ranks' times is waiting for that rank (TraceLens and DeepSpeed's
logger use the same minimum). It never compares the clocks of two hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddoctor.recorder.tape import StepRow

Meetings = Mapping[int, Sequence[tuple[float, float, float, float]]]
"""Collectives of each rank: arrival, seconds, group, operation."""


@dataclass
class Between:
    """The waiting times of all ranks."""

    waiting: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds that each rank waited, per step."""
    waits: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by (waiting rank, last rank), summed over all steps."""


def between(steps: Sequence[Mapping[int, StepRow]]) -> Between:
    """Compute the waiting times of these steps, each a row per rank."""
    found = Between()
    for rows in steps:
        step: dict[int, float] = defaultdict(float)
        for times in _matched({rank: row.meetings for rank, row in rows.items()}):
            last = min(times, key=lambda rank: times[rank])
            for rank, seconds in times.items():
                if rank != last:
                    step[rank] += seconds - times[last]
                    found.waits[rank, last] += seconds - times[last]
        for rank in rows:
            found.waiting[rank].append(step[rank])
    return found


def _matched(meetings: Meetings) -> list[dict[int, float]]:
    """Seconds by rank of each collective that several ranks joined."""
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
            # The ranks called different collectives: compare only the sums.
            found.append({rank: sum(one for _, one in rows) for rank, rows in ranks.items()})
    return found
