"""Messages between the ranks of a recorded run, over the store."""

from __future__ import annotations

import msgspec

from ddoctor.evidence.run_history import Stretch
from ddoctor.evidence.training import RankEnding, RankHost
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.proc.usage import Reading
from ddoctor.recorder.recorded import Grown
from ddoctor.recorder.tape import StepRow

UNRECORDED = 0
"""Instead of the step at which to stop: all scripts continue to their end without a record."""


class Unrecorded(Exception):
    """The run is not recorded; the message says which rank is why, and is empty on other ranks."""


class Now(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The state of a rank."""

    steps: int
    phase: int
    """Index in the recorder's PHASES."""
    age: float
    """Seconds since the phase changed."""
    doing: str
    """The phase, or the operation of the collective."""
    busy: bool
    """Whether its processes used a CPU since the last message."""
    over: bool
    exit_code: int | None
    host: str
    pid: int
    stopped: bool
    """Whether a signal has stopped the script (SIGSTOP)."""
    unrecorded: str = ""
    """Why nothing is recorded on this rank; empty: it is."""
    leaves: bool = False
    """Whether the script has ended or raised, and its process still runs."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 asks for while the script runs."""

    number: int
    first: int
    """The first step whose row is wanted."""
    stack: bool = False
    """Whether the stack of the main thread, the sections of the host, and facts of this moment are
    wanted, too."""


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 wants of all other ranks in a turn."""

    stop: int | None = None
    """Step at which to stop, or UNRECORDED; null: not yet known."""
    end: bool = False
    """Whether to end the script."""
    window: Window | None = None
    """The last question; null: there was none."""
    channel: str = ""
    """Name by which the ranks of a host meet; no other run has the same."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank gets back for its report."""

    beat: int = 0
    """Rank 0's heartbeat, a counter; 0: it has yet to start."""
    directive: Directive = Directive()


class TurnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's order to run the script again, or to end."""

    change: tuple[str, ...] = ()
    """Settings to change, in the format of ``Fix.settings``."""
    grow: SweepRequest | None = None
    """The memory sweep, which grows the micro-batches; None: no sweep."""
    port: int = 0
    """Port of the script's store; each turn has a new one, because a store keeps its keys."""
    over: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The complete record of one rank whose script has ended."""

    rank: int
    host: str
    ending: RankEnding
    """As this rank saw it."""
    ended_by_us: bool
    """Whether ddoctor ended the script, because it could not continue."""
    interrupted: bool
    leaving: bool
    """Whether the script reached the step at which to stop."""
    done: int
    rows: tuple[StepRow, ...]
    facts: msgspec.Raw
    """What the script's process wrote, a JSON of Facts; null: nothing."""
    grown: Grown | None
    use: RankHost
    cpu_seconds: float
    """CPU seconds of its processes, in the period of ``busy_seconds``."""
    busy_seconds: float
    """Busy seconds of all CPUs of its host together; 0: unknown."""
    watched_seconds: float
    memory: int = 0
    """Bytes of host memory, or the cgroup limit if it is lower."""
    workers_memory: tuple[tuple[float, float], ...] = ()
    """Times, each with the MiB of all its DataLoader workers."""
    worker_memory: float | None = None
    """Unshared MiB of a typical DataLoader worker."""
    world: int = 0
    """Ranks in the script's process group; 0: unknown."""
    host_sections: str = ""
    """Packed sections of its host; only local rank 0 collects them."""
    readings: tuple[Reading, ...] = ()
    """Counters of CPUs in the last minutes, if it is followed to its end."""
    stretches: tuple[Stretch, ...] = ()
    """Its pace from the first step on, if it is followed to its end."""
