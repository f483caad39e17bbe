"""A running training seen from outside: samples of its ranks, and the load of their host."""

from __future__ import annotations

from itertools import pairwise

from ddoctor.evidence.frames import Block, Frame, Origin
from ddoctor.evidence.section import AttachSection, Count, Known, Part

WORKER = "torch/utils/data/_utils/worker.py"
"""The loop of a DataLoader worker."""


class Activity(Part, frozen=True, kw_only=True):
    """Samples of a main thread in one activity, at one user line, on one call path."""

    name: str
    """A row's name in ``knowledge/frames.toml``; ``rest``: none of them."""
    samples: int
    visits: int = 1
    """Number of times it was entered, at any line; once: it may or may not repeat."""
    calls: tuple[Frame, ...] = ()
    """The user's frames, innermost last."""
    times: tuple[Count, ...] = ()
    """How often the thread came to each of these frames: samples in a row count once."""
    entered: Count = 0
    """How many of these frames lead into the activity; the others are within it."""
    within: tuple[Block, ...] = ()
    """Loops and branches around that line and its callers, innermost last."""
    origins: tuple[Origin, ...] = ()
    """In a pass of the model: statements whose values these frames read, directly or not."""
    makes: str = ""
    """In a loader: the function that it calls, of the dataset or to collate. Of a collective:
    torch's function, such as ``all_reduce`` or DDP's ``_sync_buffers``. In a forward pass:
    ``format_stack`` where operations keep their traceback, ``parametrization`` where a weight is
    computed. In a backward pass: ``recomputes`` where a forward pass runs again. Otherwise
    ``collects garbage`` of a function of a library. Empty: none."""
    before_skip: str = ""
    """A guard such as ``if step < start:`` with which a loop skips steps; empty: none."""
    skipped_at: Frame | None = None
    """A test before that line by which the loop around it takes the next batch; None: none."""

    @property
    def line(self) -> Frame | None:
        """The innermost user frame."""
        return self.calls[-1] if self.calls else None


class Turn(Part, frozen=True, kw_only=True):
    """A number of consecutive samples in the same activity."""

    name: str
    samples: int


class LiveWorker(Part, frozen=True, kw_only=True):
    """A process that a rank started, such as a DataLoader worker, during the sampling."""

    pid: int
    state: str
    """Process state from psutil."""
    cpu_seconds: float
    """CPU seconds during the sampling."""
    stack: tuple[Frame, ...] = ()
    """The most frequent stack of its main thread, innermost last."""
    still: bool = False
    """Whether all samples show the same stack."""

    @property
    def stuck(self) -> bool:
        """Whether it is blocked anywhere but in the wait for its next task."""
        idle = any(
            frame.file.endswith(WORKER) and after.file.endswith("multiprocessing/queues.py")
            for frame, after in pairwise(self.stack)
        )
        return self.still and not idle

    @property
    def loads_data(self) -> bool:
        """Whether it is a DataLoader worker, or not known to be another process."""
        return not self.stack or any(frame.file.endswith(WORKER) for frame in self.stack)

    @property
    def line(self) -> Frame | None:
        """The innermost user frame."""
        return next((frame for frame in reversed(self.stack) if frame.of_user), None)


class LiveRank(Part, frozen=True, kw_only=True):
    """One rank: counts and CPU seconds are those of the sampling."""

    rank: int
    pid: int
    state: str
    """Process state from psutil at the end of the sampling, or ``gone``."""
    age_seconds: float
    """Seconds since the process started."""
    cpu_seconds: float
    """CPU seconds of all its threads, during the sampling."""
    main_cpu_seconds: float
    """CPU seconds of its main thread, during the sampling."""
    asleep: float | None = None
    """Share of the time in which its main thread slept, 0 to 1."""
    resident: float
    """Resident memory in MiB."""
    held: tuple[float, ...] = ()
    """MiB at equal intervals, without memory that the kernel can reclaim."""
    workers_held: tuple[float, ...] = ()
    """The same for its DataLoader workers together, in MiB."""
    swapped: float = 0.0
    """MiB that the kernel moved to swap."""
    faults: int = 0
    """Major page faults during the sampling: pages read from a disk."""
    moved: float = 0.0
    """MiB that it read and wrote during the sampling: files, pipes and terminals."""
    wakes: int = 0
    """Number of times its main thread woke up during the sampling."""
    longest_sleep: float | None = None
    """Longest time without a wake-up, in seconds, checked twice a second. None: not checked."""
    on_gpu: bool = False
    """Whether the CUDA driver is loaded in it."""
    samples: int = 0
    """Number of stack samples of its main thread."""
    stack: tuple[Frame, ...] = ()
    """The most frequent stack of its main thread, innermost last."""
    still: bool = False
    """Whether all samples of its main thread show the same stack."""
    within: tuple[Frame, ...] = ()
    """If so: the ``with`` statements around the frames, innermost last."""
    activities: tuple[Activity, ...] = ()
    """Most frequent first."""
    turns: tuple[Turn, ...] = ()
    """The same in order of time."""
    workers: tuple[LiveWorker, ...] = ()
    restarts: Count = 0
    """Number of times that all its DataLoader workers were replaced, checked twice a second."""
    framework: str = ""
    """A name of ``knowledge/frameworks.toml``: what runs the loop; empty: the script itself."""
    unseen: str = ""
    """Why there are no stacks; empty: there are."""

    def __post_init__(self) -> None:
        if (self.activities or self.turns) and self.samples < 1:
            raise ValueError(f"rank {self.rank} has activities without samples")

    def share(self, name: str) -> float:
        """Share of the samples in this activity, 0 to 1."""
        met = sum(one.samples for one in self.activities if one.name == name)
        return met / self.samples if self.samples else 0.0

    def visits(self, name: str) -> int:
        """Number of times it entered this activity."""
        return max((one.visits for one in self.activities if one.name == name), default=0)

    def calls(self, name: str) -> tuple[Frame, ...]:
        """The user's frames most often sampled in this activity, innermost last."""
        return next((one.calls for one in self.activities if one.name == name), ())


class LiveLink(Part, frozen=True, kw_only=True):
    """The TCP connections between two IP addresses: of the ranks of one host and another host."""

    local: str
    remote: str
    queued: float
    """Share of the readings with data waiting to be sent or acknowledged, 0 to 1."""
    unread: float = 0.0
    """Share of the readings with received data that was not yet read, 0 to 1."""
    interface: str = ""
    """The interface with the local address; empty: invisible from here."""
    sent: float | None = None
    """MiB/s that all processes send over this interface."""
    speed: int | None = None
    """Speed that the interface reports, Mbit/s."""


class LiveLook(AttachSection, frozen=True, kw_only=True):
    """The sampled ranks of one job on one host."""

    commands = ("attach", "diagnose")

    job: str
    world: Count
    """Number of ranks of the whole job."""
    seconds: float
    """Duration of the sampling."""
    command: tuple[str, ...]
    dumped: bool = False
    """Whether it is of dumps, which have a stack of each rank at a moment, and nothing else."""
    missing: tuple[int, ...] = ()
    """Ranks that were started on this host and no longer exist."""
    supervised: bool = False
    """Whether a launcher ends all ranks when one fails: a missing rank then did not fail."""
    ranks: tuple[LiveRank, ...]
    links: tuple[LiveLink, ...] = ()
    """Connections to other hosts that use TCP."""


class FrameRow(Part, frozen=True, kw_only=True):
    """Frames that show one activity."""

    activity: str
    file: str
    """End of the file's path."""
    functions: tuple[str, ...]
    innermost: bool = False
    """Whether it counts as the innermost frame only."""
    native: bool = False
    """Whether the functions are native code, which only ``--native`` samples."""
    source: str


class KnownFrames(Known, frozen=True, kw_only=True):
    """The activities; the first row with a frame on the stack applies."""

    table = "frames.toml"

    frame: tuple[FrameRow, ...]

    @property
    def native(self) -> frozenset[str]:
        """The native functions that show an activity."""
        return frozenset(name for row in self.frame if row.native for name in row.functions)


class GpuTraffic(Part, frozen=True, kw_only=True):
    """One GPU, all processes together, in MiB/s; None: the GPU does not report it."""

    index: int
    """Index in nvidia-smi."""
    pcie_received: float | None = None
    pcie_sent: float | None = None
    nvlink_received: float | None = None
    """MiB/s over all its NVLinks, without protocol overhead."""
    nvlink_sent: float | None = None


class GpuRates(AttachSection, frozen=True, kw_only=True):
    """Mean rates over a short interval at the end of the sampling."""

    gpus: tuple[GpuTraffic, ...]


class DiskTraffic(Part, frozen=True, kw_only=True):
    """One disk of the host, all processes together, in MiB/s."""

    name: str
    busy: float
    """Share of the time in which it was busy, 0 to 1."""
    read: float
    """MiB/s."""
    written: float
    """MiB/s."""


class InterfaceTraffic(Part, frozen=True, kw_only=True):
    """One network interface of the host, all processes together, in MiB/s."""

    name: str
    received: float
    """MiB/s."""
    sent: float
    """MiB/s."""


class HostRates(AttachSection, frozen=True, kw_only=True):
    """Mean rates over the sampling; idle devices are left out."""

    seconds: float
    """Duration of the sampling."""
    load: float
    """Threads that ran or were ready to run, mean of the last minute."""
    disks: tuple[DiskTraffic, ...] = ()
    interfaces: tuple[InterfaceTraffic, ...] = ()


class BuildLock(Part, frozen=True, kw_only=True):
    """One lock file: every process that needs the extension waits until the file is gone."""

    path: str
    age_seconds: float
    holder: int | None = None
    """Process on this host that has the file open, as a running build has; None: none visible."""


class BuildLocks(AttachSection, frozen=True, kw_only=True):
    """All lock files in the extension folders of the ranks on this host."""

    locks: tuple[BuildLock, ...] = ()
