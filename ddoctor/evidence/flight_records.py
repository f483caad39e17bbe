"""What a live run tells of its own collectives: torch's flight recorder, and NCCL's RAS service."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.evidence.training import Frame


class Call(Part, frozen=True, kw_only=True):
    """A collective that a rank has called."""

    number: int
    """In its group; the same on all ranks of it."""
    operation: str
    """As the recorder calls it, say ``all_reduce``."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """The shape of each of its inputs."""
    types: tuple[str, ...] = ()
    """Of the numbers in each, say ``Float``."""
    state: str
    """``scheduled``, ``started`` or ``completed``; with gloo always ``scheduled``."""
    over: bool
    line: Frame | None = None
    """The innermost of the user's own that called it; None: not recorded."""


class GroupCalls(Part, frozen=True, kw_only=True):
    """What a rank has called in one process group."""

    group: str
    """The library, the name and the description of it, say ``nccl 0 (default_pg)``."""
    members: tuple[int, ...] = ()
    """Its ranks; empty: not recorded."""
    calls: tuple[Call, ...]
    """In their order: the first that is not over, a few before it, and a few after it."""

    @property
    def current(self) -> Call | None:
        """The first that is not over; None: all are."""
        return next((one for one in self.calls if not one.over), None)

    @property
    def last(self) -> Call | None:
        """The last that is over; None: none is."""
        return next((one for one in reversed(self.calls) if one.over), None)


class RankRecords(Part, frozen=True, kw_only=True):
    """The flight recorder of one rank."""

    rank: int
    pid: int
    told_by: str
    """``control socket`` or ``dump file``."""
    age_seconds: float = 0.0
    """Of the records, when they were read."""
    idle_seconds: float
    """Between its newest call and these records."""
    groups: tuple[GroupCalls, ...]

    @property
    def waits(self) -> bool:
        """Whether something that it called is not over."""
        return any(one.current is not None for one in self.groups)


class FlightRecords(Section, frozen=True, kw_only=True):
    """Of the ranks of one job on one host, those that keep records."""

    of_attaching: ClassVar[bool] = True

    ranks: tuple[RankRecords, ...] = ()
    nccl: tuple[str, ...] = ()
    """What NCCL's RAS service says of errors, missing processes and counts that differ."""

    @classmethod
    def obtain(cls) -> str:
        """The command that makes it: the run has to keep records."""
        return "TORCH_FR_BUFFER_SIZE=2000 torchrun … (docs/guides/attach.md)"
