"""What the probes measured, and how each run of a probe ended."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.section import Part, Section


class RankPlace(Part, frozen=True, kw_only=True):
    """Where a rank runs."""

    rank: int
    host: str
    device: str
    """cpu, or cuda:INDEX."""
    device_name: str = ""
    bus_id: str = ""


class SweepPoint(Part, frozen=True, kw_only=True):
    """One message size of a collective: the time of a round, over all timed rounds."""

    bytes: int
    rounds: int
    p50: float
    """Seconds; of the rank whose median is the largest."""
    p99: float
    minimum: float
    bus_bandwidth: float
    """GB/s (1e9 bytes), nccl-tests' busbw, from p50."""


class WrongValue(Part, frozen=True, kw_only=True):
    """A collective or matmul that returned a wrong number."""

    rank: int
    bytes: int
    expected: float
    got: float


class AllReduce(Section, frozen=True, kw_only=True):
    """All-reduce over message sizes, values verified."""

    probe: ClassVar[str] = "allreduce"

    backend: str
    ranks: tuple[RankPlace, ...]
    points: tuple[SweepPoint, ...]
    wrong: tuple[WrongValue, ...] = ()
    algorithm: str | None = None
    """As NCCL's own log names it: ring, tree, nvls, …; None: not told."""
    transport: str | None = None
    """As NCCL's own log names it: P2P/CUMEM, SHM, NET/Socket, …; None: not told."""
    nccl: str | None = None

    @property
    def device_name(self) -> str | None:
        """The model of all GPUs; None: CPUs, or GPUs of several models."""
        names = {place.device_name for place in self.ranks}
        return names.pop() or None if len(names) == 1 else None

    @property
    def within_node(self) -> bool:
        """Whether all ranks run on one host."""
        return bool(self.ranks) and all(one.host == self.ranks[0].host for one in self.ranks)


class RankRate(Part, frozen=True, kw_only=True):
    """A rate that one rank reached."""

    place: RankPlace
    rate: float
    spread: float = 0.0
    """Interquartile range of the rounds, in the unit of the rate."""


class Matmul(Section, frozen=True, kw_only=True):
    """Matrix multiplication on every rank, in TFLOP/s, results verified."""

    probe: ClassVar[str] = "matmul"

    dtype: str
    size: int
    rates: tuple[RankRate, ...]
    wrong: tuple[WrongValue, ...] = ()


class MemoryBandwidth(Section, frozen=True, kw_only=True):
    """Device memory: bytes read plus bytes written per second, in GB/s."""

    probe: ClassVar[str] = "memory_bandwidth"

    rates: tuple[RankRate, ...]


class HostToDevice(Section, frozen=True, kw_only=True):
    """Copies between pinned host memory and the device, in GB/s."""

    probe: ClassVar[str] = "host_to_device"

    to_device: tuple[RankRate, ...]
    to_host: tuple[RankRate, ...]


class StorageRead(Section, frozen=True, kw_only=True):
    """Reading the data folder: one large stream, and many small files."""

    probe: ClassVar[str] = "storage_read"

    path: str
    filesystem: str = ""
    sequential: float | None = None
    """MB/s (1e6 bytes)."""
    sequential_bytes: int = 0
    small_files: float | None = None
    """Files per second."""
    small_file_count: int = 0
    small_file_bytes: int = 0
    cold: bool | None = None
    """Whether the page cache was dropped for these files first; None: could not be told."""
    readers: int = 1
    """Hosts that read at the same time, this one among them."""


class RankState(Part, frozen=True, kw_only=True):
    """A rank of a probe as it was last seen from outside."""

    rank: int
    host: str
    last: str
    """What it wrote last, say ``allreduce 1048576``."""
    age: float
    """Seconds since then."""
    steps: int = 0
    """How many lines it has written: ranks that work in step have written as many."""
    pid: int = 0
    status: str = ""
    """Process state as psutil names it: running, sleeping, stopped, disk-sleep, zombie, gone."""
    exit_code: int | None = None
    """Of a rank that ended by its own failure; minus the signal's number if one killed it."""
    words: str = ""
    """The error that it died of, or the last line on its standard error."""


class ProbeRun(Part, frozen=True, kw_only=True):
    """How one probe ended."""

    probe: str
    outcome: Literal["completed", "skipped", "hung", "crashed", "interrupted"]
    reason: str = ""
    seconds: float = 0.0
    ranks: tuple[RankState, ...] = ()
    """Only for those that did not complete."""


class ProbeRuns(Section, frozen=True, kw_only=True):
    """Every probe that was to run, and what became of it."""

    runs: tuple[ProbeRun, ...]
    backend: str = ""
    world_size: int = 0
