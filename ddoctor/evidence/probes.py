"""Results of the probes that run on any number of ranks, and how each probe ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from ddoctor.evidence.section import Count, Part, Section


class RankPlace(Part, frozen=True, kw_only=True):
    """The host and device of a rank."""

    rank: int
    host: str
    device: str
    """Device name: cpu, or cuda:INDEX."""
    device_name: str = ""
    bus_id: str = ""


def common_device(places: Iterable[RankPlace]) -> str | None:
    """The model of all devices; None: several models, or not known."""
    names = {place.device_name for place in places}
    return names.pop() or None if len(names) == 1 else None


def on_one_host(places: Iterable[RankPlace]) -> bool:
    """Whether all ranks run on one host."""
    return len({one.host for one in places}) == 1


class SweepPoint(Part, frozen=True, kw_only=True):
    """One message size of a collective: seconds per round, over all timed rounds."""

    bytes: int
    """Message size."""
    rounds: int
    """Number of timed rounds."""
    p50: float
    """Median seconds, of the rank with the largest median."""
    p99: float
    """99th percentile in seconds, of the same rank."""
    minimum: float
    """Shortest round in seconds."""
    bus_bandwidth: float
    """nccl-tests' busbw in GB/s (1e9 bytes), from p50."""


class WrongValue(Part, frozen=True, kw_only=True):
    """A collective or matmul with a wrong result."""

    signed = frozenset({"expected", "got"})

    rank: int
    bytes: int
    expected: float
    got: float | None
    """None: not a number, or infinite, which no JSON can hold."""


class AllReduce(Section, frozen=True, kw_only=True):
    """All-reduce over message sizes, with verified values."""

    probe = "allreduce"

    backend: str
    ranks: tuple[RankPlace, ...]
    points: tuple[SweepPoint, ...]
    wrong: tuple[WrongValue, ...] = ()
    algorithm: str | None = None
    """Algorithm in NCCL's log: ring, tree, nvls, …; None: not known."""
    transport: str | None = None
    """Transport in NCCL's log: P2P/CUMEM, SHM, NET/Socket, …; None: not known."""
    nccl: str | None = None

    @property
    def device_name(self) -> str | None:
        """The model of all GPUs; None: CPUs, or several models."""
        return common_device(self.ranks)

    @property
    def within_node(self) -> bool:
        """Whether all ranks run on one host."""
        return on_one_host(self.ranks)


class RankRate(Part, frozen=True, kw_only=True):
    """A rate that one rank reached."""

    place: RankPlace
    rate: float
    spread: float = 0.0
    """Interquartile range of the rounds, in the unit of the rate."""


class Matmul(Section, frozen=True, kw_only=True):
    """Matrix multiplication on every rank, in TFLOP/s, with verified results."""

    probe = "matmul"

    dtype: str
    size: int
    """Rows of the square matrices."""
    rates: tuple[RankRate, ...]
    wrong: tuple[WrongValue, ...] = ()


class MemoryBandwidth(Section, frozen=True, kw_only=True):
    """Device memory bandwidth: bytes read plus bytes written per second, in GB/s."""

    probe = "memory_bandwidth"

    rates: tuple[RankRate, ...]


class HostToDevice(Section, frozen=True, kw_only=True):
    """Copies between pinned host memory and the device, in GB/s."""

    probe = "host_to_device"

    to_device: tuple[RankRate, ...]
    to_host: tuple[RankRate, ...]


class StorageRead(Section, frozen=True, kw_only=True):
    """Read speed of the data folder: one large stream, and many small files."""

    probe = "storage_read"

    path: str
    filesystem: str = ""
    sequential: float | None = None
    """Sequential read in MB/s (1e6 bytes)."""
    sequential_bytes: int = 0
    small_files: float | None = None
    """Small files read per second."""
    small_file_count: int = 0
    small_file_bytes: int = 0
    cold: bool | None = None
    """Whether the page cache was dropped for these files first; None: not known."""
    readers: int = 1
    """Number of hosts that read at the same time, including this one."""


class RankState(Part, frozen=True, kw_only=True):
    """The last known state of a probe's rank, seen from outside."""

    signed = frozenset({"exit_code"})

    rank: int
    host: str
    last: str
    """Its last journal entry, say ``allreduce 1048576``."""
    age: float
    """Seconds since that entry."""
    steps: int = 0
    """Number of its journal entries; ranks in step have equal numbers."""
    pid: int = 0
    status: str = ""
    """Process state as psutil names it: running, sleeping, stopped, disk-sleep, zombie, gone."""
    exit_code: int | None = None
    """Exit code of a rank that failed; negative: the number of the signal that ended it."""
    words: str = ""
    """The error that ended it, or the last line of its standard error."""


class ProbeRun(Part, frozen=True, kw_only=True):
    """How one probe ended."""

    probe: str
    outcome: Literal["completed", "skipped", "hung", "crashed", "interrupted"]
    reason: str = ""
    seconds: float = 0.0
    """Duration of the probe."""
    ranks: tuple[RankState, ...] = ()
    """The ranks of a probe that did not complete; empty: it completed."""


class ProbeRuns(Section, frozen=True, kw_only=True):
    """Every scheduled probe, and its outcome."""

    commands = ("doctor", "probe", "run")

    runs: tuple[ProbeRun, ...]
    backend: str = ""
    world_size: Count = 0


class Burning(Part, frozen=True, kw_only=True):
    """One rank during the burn."""

    signed = frozenset({"expected", "got"})

    place: RankPlace
    rates: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    """TFLOP/s in equal parts of the time."""
    products: int
    """Number of products that were compared with the first, bit by bit."""
    wrong: int = 0
    """Number of products that differed from the first."""
    wrong_after: float | None = None
    """Seconds from the start to the first product that differed."""
    expected: float | None = None
    """The first wrong number as the first product has it; None: not a number."""
    got: float | None = None
    """The same number as the product that differed has it; None: not a number."""
    temperatures: tuple[int, ...] = ()
    """°C at the end of each part; empty: not reported."""
    limited_by: tuple[str, ...] = ()
    """Every reason that limited the clocks during the burn, as NVML names it."""

    @property
    def fallen(self) -> float | None:
        """Share by which the rate fell; 0: first and last third overlap; None: too few parts."""
        third = len(self.rates) // 3
        if third < 2:
            return None
        first, last = self.rates[:third], self.rates[-third:]
        if max(last) >= min(first):
            return 0.0
        return 1 - statistics.median(last) / statistics.median(first)

    @property
    def sustained(self) -> RankRate:
        """The median rate of all parts, with its interquartile range."""
        spread = 0.0
        if len(self.rates) > 1:
            low, _, high = statistics.quantiles(self.rates, n=4)
            spread = high - low
        return RankRate(place=self.place, rate=statistics.median(self.rates), spread=spread)


class Burn(Section, frozen=True, kw_only=True):
    """The same matrix multiplication, repeated on every rank independently."""

    probe = "burn"

    dtype: str
    size: int
    """Rows of the square matrices."""
    seconds: float
    ranks: tuple[Burning, ...]
