"""The records of one turn of the script on all ranks, its judged steps, and the waiting in them.

The rank that arrives last in a collective does not wait, so the shortest time of all ranks is the
transfer. The rest of the other ranks' times is waiting for that rank (TraceLens and DeepSpeed's
logger use the same minimum). It never compares the clocks of two hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

import msgspec

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.recorder.recorded import Facts
from ddoctor.recorder.tape import COUNT, Meeting, StepRow
from ddoctor.training.messages import Now, Record

FEWEST_STEPS = 2
NOTHING_WRITTEN = Facts()

Meetings = Mapping[int, Sequence[Meeting]]
"""Collectives of each rank."""


@dataclass
class Between:
    """The waiting times of all ranks."""

    waiting: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds that each rank waited, per step."""
    waits: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by (waiting rank, last rank), summed over all steps."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One turn of the script on all ranks."""

    records: Sequence[Record]
    command: tuple[str, ...]
    warm_up: int
    limit: str
    """Why ddoctor ended it before its steps were done."""
    lost: Mapping[int, Now | None]
    """Last state of each rank that sent no record; None: it never sent one."""
    hang_states: Mapping[int, Now]
    """State of each rank when ddoctor ended it because it made no progress; empty: it did not.

    Ending the first rank unblocks the others.
    """
    looked: Evidence | None = None
    """What ranks were seen to do that the script starts itself, and nothing records."""

    @property
    def hung(self) -> bool:
        """Whether ddoctor ended it because it made no progress."""
        return bool(self.hang_states)

    @cached_property
    def steps(self) -> list[Mapping[int, StepRow]]:
        """The judged steps: after the warm-up, recorded on all ranks, and inspected on none."""
        by_rank = [{row.number: row for row in record.rows} for record in self.records]
        common = set.intersection(*(set(rows) for rows in by_rank)) if by_rank else set()
        inspected, on_device = COUNT["inspected"], COUNT["on_device"]
        return [
            {record.rank: rows[number] for record, rows in zip(self.records, by_rank, strict=True)}
            for number in sorted(common)
            if number >= self.warm_up
            and not any(rows[number].counts[inspected] for rows in by_rank)
            # Host and GPU stream have separate clocks: a run uses only one of them.
            and (not self.on_device or all(rows[number].counts[on_device] for rows in by_rank))
        ]

    @cached_property
    def together(self) -> Between:
        """Which rank waited for which in the judged steps."""
        return between(self.steps)

    @property
    def on_device(self) -> bool:
        """Whether the times are GPU times."""
        return any(facts.device.startswith("cuda") for _, facts in self.facts)

    @property
    def judged(self) -> bool:
        """Whether there are steps to judge."""
        return len(self.steps) >= FEWEST_STEPS

    def span(self, rank: int) -> tuple[float, float]:
        """Begin and end of a rank's judged steps, by the clock of its host."""
        return self.steps[0][rank].begin, self.steps[-1][rank].end

    def place(self, record: Record) -> RankPlace:
        """Host and device of a rank."""
        facts = self.known.get(record.rank, NOTHING_WRITTEN)
        return RankPlace(
            rank=record.rank,
            host=record.host,
            device=facts.device,
            device_name=facts.flags.device_name if facts.flags else "",
        )

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a step over judged steps and ranks; None: no step is judged."""
        if not self.judged:
            return None
        return fmean(row.end - row.begin for rows in self.steps for row in rows.values())

    @property
    def facts(self) -> Iterator[tuple[Record, Facts]]:
        """The records and facts of the ranks whose script wrote facts."""
        return ((one, self.known[one.rank]) for one in self.records if one.rank in self.known)

    @cached_property
    def known(self) -> Mapping[int, Facts]:
        """The same facts by rank."""
        known = {}
        for record in self.records:
            with suppress(msgspec.DecodeError):
                known[record.rank] = msgspec.json.decode(record.facts, type=Facts)
        return known

    def rows(self, record: Record) -> Sequence[StepRow]:
        """The judged steps of a rank."""
        return [step[record.rank] for step in self.steps]


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
