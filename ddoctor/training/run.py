"""The records of one turn of the script on all ranks, and its judged steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

from ddoctor.evidence.probes import RankPlace
from ddoctor.recorder.recorded import Facts
from ddoctor.recorder.tape import COUNT, StepRow
from ddoctor.training.between import Between, between
from ddoctor.training.messages import Now, Record

FEWEST_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Run:
    """One turn of the script on all ranks."""

    records: Sequence[Record]
    command: tuple[str, ...]
    warm_up: int
    limit: str
    asked_steps: int
    lost: tuple[int, ...] = ()
    hung: bool = False
    """Whether ddoctor ended it because it made no progress."""
    hang_states: Mapping[int, Now] = field(default_factory=dict)
    """State of each rank at that decision."""

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
        facts = record.facts
        return RankPlace(
            rank=record.rank,
            host=record.host,
            device=facts.device if facts else "cpu",
            device_name=facts.flags.device_name if facts and facts.flags else "",
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
        return ((one, one.facts) for one in self.records if one.facts is not None)
