"""A recorded run from its start to its end: its pace on each rank, and what happened in it."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Count, Part, RunSection

Event = Literal["slower", "cause", "recovered", "hung", "resumed", "ended"]


class RunEvent(Part, frozen=True, kw_only=True):
    """Something that happened; one object of ``events.jsonl``."""

    event: Event
    """slower: steps take longer than before, for good. cause: what explains that. recovered: they
    are as before again. hung: no step for longer than the run's own pauses. resumed: it
    continues after that. ended: the script has ended on all ranks."""
    step: int
    """The step with which it began; steps count from 0."""
    time: str = ""
    """ISO 8601, UTC."""
    seconds: float = 0.0
    """Seconds since the start of the script on rank 0."""
    attempt: int = 0
    """Number of restarts by the launcher before this one."""
    before: float | None = None
    after: float | None = None
    """Median seconds of a step before and after it."""
    phase: str = ""
    """What takes longer: one of PHASES."""
    ranks: tuple[Count, ...] = ()
    hosts: tuple[str, ...] = ()
    """Where; empty: everywhere."""
    others: float | None = None
    """CPUs of a host that other processes, or other virtual machines, use more than before."""
    cause: str = ""
    """Its stable name; empty: not known."""
    title: str = ""
    fix: str = ""
    lost_seconds: float | None = None
    """Seconds that it has cost so far, on every rank at once."""


class Stretch(Part, frozen=True, kw_only=True):
    """Consecutive steps of one rank."""

    first: int
    last: int
    begin: float
    """Seconds since the start of the script."""
    seconds: float
    """Duration of all of them."""
    fastest: float
    median: float
    slowest: float
    """Seconds of a step: the smallest, the middle and the 99th percentile."""
    phases: dict[str, float]
    """Share of the recorded time by the recorder's phases; ``collective`` is waiting and
    transfer."""
    resident: float
    """MiB of the rank's process at its end."""


class RankHistory(Part, frozen=True, kw_only=True):
    """The pace of a rank."""

    rank: int
    host: str
    stretches: tuple[Stretch, ...]


class RunHistory(RunSection, frozen=True, kw_only=True):
    """The run as a whole."""

    obtained_by = "ddoctor run --steps all -- COMMAND"

    ranks: tuple[RankHistory, ...]
    events: tuple[RunEvent, ...] = ()
    seconds: float = 0.0
    """Duration of the script on rank 0."""

    @property
    def steps(self) -> int:
        """Number of steps of the rank with the most."""
        each = (max((one.last for one in rank.stretches), default=-1) + 1 for rank in self.ranks)
        return max(each, default=0)
