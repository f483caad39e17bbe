"""What the ranks of a recorded run tell each other, over the store."""

from __future__ import annotations

import msgspec

from ddoctor.evidence.training import Frame, RankHost
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.recorder.recorded import Facts, Grown
from ddoctor.recorder.script import Ending
from ddoctor.recorder.tape import StepRow


def now_key(turn: int, rank: int) -> str:
    return f"now/{turn}/{rank}"


def stop_key(turn: int) -> str:
    return f"stop/{turn}"


def end_key(turn: int) -> str:
    return f"end/{turn}"


def record_key(turn: int, rank: int) -> str:
    return f"record/{turn}/{rank}"


def turn_key(turn: int) -> str:
    return f"turn/{turn}"


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank is."""

    beat: int
    steps: int
    phase: int
    """Of the recorder's PHASES."""
    age: float
    """Seconds since the phase changed."""
    doing: str
    """The phase, or the operation of the collective."""
    busy: bool
    """Whether its processes used a CPU since the last word."""
    over: bool = False
    exit_code: int | None = None
    ended: float = 0.0
    """Seconds from its start to its end."""
    interrupted: bool = False
    warm: bool = False
    """The steps have found their pace."""


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """At which step to stop."""

    at: int


class TurnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The script once more, or nothing more."""

    change: tuple[str, ...] = ()
    """As in ``Fix.settings``."""
    grow: SweepRequest | None = None
    """With more and more samples at a time."""
    port: int = 0
    """Where the scripts meet: each turn at a port of its own, because a store keeps its words."""
    over: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is of one rank when its script has ended."""

    rank: int
    host: str
    pid: int
    exit_code: int | None
    ended_by_us: bool
    """It was ended, because it could not go on."""
    interrupted: bool
    leaving: bool
    """It was at the step at which it was told to stop."""
    seconds: float
    done: int
    rows: tuple[StepRow, ...]
    facts: Facts | None
    ending: Ending | None
    grown: Grown | None
    doing: str
    doing_seconds: float
    calls: int
    use: RankHost
    cpu_seconds: float
    """Of its processes, in the time of ``busy_seconds``."""
    busy_seconds: float
    """Of all CPUs of its host together; 0: not told."""
    watched_seconds: float
    memory: int = 0
    """Bytes that the host has, or grants to its cgroup."""
    workers_memory: tuple[tuple[float, float], ...] = ()
    """Time, and MiB of all its DataLoader workers."""
    worker_memory: float | None = None
    """MiB of its own, of one worker."""
    world: int = 0
    """Ranks in the script's process group; 0: not known."""
    children_seconds: float = 0.0
    """CPU seconds of the Python processes that may have trained in its place."""
    stack: tuple[Frame, ...] = ()
    printed: str = ""
    host_sections: str = ""
    """Of its host, packed; only local rank 0 collects them."""
