"""Records of a live run's collectives: torch's flight recorder, and NCCL's RAS service."""

from __future__ import annotations

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.section import AttachSection, Part, Section


class Call(Part, frozen=True, kw_only=True):
    """A collective that a rank has called."""

    number: int
    """Sequence number in its process group; the same on all its ranks."""
    operation: str
    """Name in the flight recorder, say ``all_reduce``."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Shape of each input."""
    types: tuple[str, ...] = ()
    """Data type of each input, say ``Float``."""
    state: str
    """``scheduled``, ``started`` or ``completed``; with gloo always ``scheduled``."""
    over: bool
    line: Frame | None = None
    """The innermost user frame that called it; None: not recorded."""


class GroupCalls(Part, frozen=True, kw_only=True):
    """The calls of a rank in one process group."""

    group: str
    """Backend, name and description, say ``nccl 0 (default_pg)``."""
    calls: tuple[Call, ...]
    """In call order: the first unfinished call, with a few before and after it."""

    @property
    def current(self) -> Call | None:
        """The first unfinished call; None: all are finished."""
        return next((one for one in self.calls if not one.over), None)

    @property
    def last(self) -> Call | None:
        """The last finished call; None: none is finished."""
        return next((one for one in reversed(self.calls) if one.over), None)


class RankRecords(Part, frozen=True, kw_only=True):
    """The flight recorder of one rank."""

    rank: int
    pid: int
    told_by: str
    """Where the records were read: ``control socket`` or ``dump file``."""
    age_seconds: float = 0.0
    """Age of the records when they were read, in seconds."""
    idle_seconds: float
    """Seconds between the rank's newest call and the records."""
    groups: tuple[GroupCalls, ...]

    @property
    def waits(self) -> bool:
        """Whether any of its calls is unfinished."""
        return any(one.current is not None for one in self.groups)


class FlightDumps(Section, frozen=True, kw_only=True):
    """The flight records of a run that has ended, from the files that its ranks have written."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose DUMP..."

    files: tuple[str, ...]
    ranks: tuple[RankRecords, ...]


class FlightRecords(AttachSection, frozen=True, kw_only=True):
    """The flight records of one job's ranks on one host; ranks that keep none are missing."""

    obtained_by = "TORCH_FR_BUFFER_SIZE=2000 torchrun … (docs/guides/attach.md)"

    ranks: tuple[RankRecords, ...] = ()
    nccl: tuple[str, ...] = ()
    """Errors, missing processes and differing counts that NCCL's RAS service reports."""
