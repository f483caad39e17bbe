"""The ranks of a probe: join the process group, warm up, time, agree and gather."""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddoctor.collect import host
from ddoctor.evidence.probes import RankPlace, RankRate, WrongValue
from ddoctor.probing import nccl_log
from ddoctor.probing.journal import Journal

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import ProcessGroup, Store

    from ddoctor.probing.sweep_request import SweepRequest

Agreed = TypeVar("Agreed")

# As in nccl-tests and ml-engineering's all_reduce_bench.py: the first collectives of a size set up
# channels and buffers, and would raise the time sixfold if they counted.
WARM_UPS = 5
ROUNDS = 20
FEWEST_ROUNDS = 3

# Longer than any launcher waits: the supervisors report the missing ranks.
JOIN_LIMIT = timedelta(minutes=10)

# 8192 is where cuBLAS reaches its plateau on A100 and later (Azure's AI-benchmarking-guide); a CPU
# core needs tens of milliseconds for 1024.
MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}

BURN_SECONDS = 20.0
"""Default length of the burn; it fits the time limit of one host."""

MEMORY_SHARE = 4
"""A probe takes at most one part in this many (a quarter) of the free memory."""


class Skip(Exception):
    """This probe cannot run here; every rank raises it, with the reason."""


@dataclass(frozen=True, kw_only=True)
class ProbeWorld:
    """One rank's view of all ranks of the probes."""

    rank: int
    local_rank: int
    size: int
    host: str
    device: torch.device
    backend: str
    journal: Journal
    store: Store
    """The ranks agree and gather through it; it needs no collectives."""
    data: Path = Path()
    """The folder of the training data."""
    nccl_output: Path | None = None
    """The file of NCCL's log; None: the user's NCCL_DEBUG sends it elsewhere."""
    share_of_time: float = 1.0
    """Share of the usual time that a measurement may take: 1, or less with --quick."""
    burn: float = BURN_SECONDS
    """Seconds that the ranks compute without a break in the probe burn."""
    headroom: SweepRequest | None = None
    """The training whose memory to sweep; None: no sweep was requested."""
    group: ProcessGroup | None = None
    """The process group of the ranks that ``within`` selected; None: all ranks."""
    _exchanges: count[int] = field(default_factory=count)

    @property
    def on_gpu(self) -> bool:
        """Whether the ranks compute on GPUs."""
        return self.device.type == "cuda"

    def doing(self, what: str) -> None:
        """Write the next step to the journal; call it before anything that may block.

        In a subset of the ranks it writes nothing: subsets take different numbers of steps, and
        only steps that all ranks take show which rank lags.
        """
        if self.group is None:
            self.journal.write(what)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks (anything that JSON holds), by rank."""
        # Through rank 0: if each rank asked each other one, 1000 ranks would ask a million times.
        return self.agree(self.collect(value))

    def collect(self, value: Any) -> list[Any]:
        """The values of all ranks on rank 0; empty on the other ranks, which do not wait."""
        exchange = next(self._exchanges)
        self.store.set(f"{exchange}/{self.rank}", json.dumps(value))
        if self.rank > 0:
            return []
        keys = [f"{exchange}/{rank}" for rank in range(self.size)]
        return [json.loads(value) for value in self.store.multi_get(keys)]

    def agree(self, value: Agreed) -> Agreed:
        """Rank 0's value on every rank; the other ranks wait for it."""
        exchange = str(next(self._exchanges))
        if self.rank == 0:
            self.store.set(exchange, json.dumps(value))
        agreed: Agreed = json.loads(self.store.get(exchange))
        return agreed

    def meet(self) -> None:
        """Wait until every rank has reached this call."""
        self.doing("waiting for the other ranks")
        self.collect(None)
        self.agree(None)

    @property
    def bus_id(self) -> str:
        """PCI bus id of this rank's device in the kernel's format; empty on a CPU."""
        return _identity(self.device)[1]

    def places(self) -> tuple[RankPlace, ...]:
        """Host and device of each rank."""
        name, bus_id = _identity(self.device)
        index = self.device.index if self.on_gpu else None
        own = (self.host, "cpu" if index is None else f"cuda:{index}", name, bus_id)
        return tuple(
            RankPlace(rank=rank, host=host, device=device, device_name=device_name, bus_id=bus)
            for rank, (host, device, device_name, bus) in enumerate(self.gather(own))
        )

    def machines(self) -> tuple[tuple[str, int], ...]:
        """The machine of each rank and its number of CPUs: containers may share a machine."""
        boot = Path("/proc/sys/kernel/random/boot_id")
        name = boot.read_text().strip() if boot.exists() else self.host
        return tuple((name, cpus) for name, cpus in self.gather((name, os.cpu_count() or 1)))

    def within(self, ranks: Sequence[int], name: str) -> ProbeWorld:
        """The world of a subset of the ranks that includes this rank; ``name`` must be unique."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore

        return replace(
            self,
            rank=ranks.index(self.rank),
            size=len(ranks),
            store=PrefixStore(name, self.store),
            group=dist.new_group(list(ranks), use_local_synchronization=True),
            _exchanges=count(),
        )

    def rates(self, amount: float, seconds: Sequence[float]) -> tuple[RankRate, ...]:
        """Each rank's ``amount`` per second in its median round, and the interquartile range."""
        rates = [amount / second for second in seconds]
        low, _, high = statistics.quantiles(rates, n=4)
        rows = self.gather((amount / statistics.median(seconds), high - low))
        return tuple(
            RankRate(place=place, rate=rate, spread=spread)
            for place, (rate, spread) in zip(self.places(), rows, strict=True)
        )

    def wrong_values(
        self, size: int, mine: tuple[float, float] | None, ranks: Sequence[int] | None = None
    ) -> tuple[WrongValue, ...]:
        """The first wrong value of each rank, from this rank's pair of expected and actual value.

        ``size``: bytes of the data; ``ranks``: the numbers of these ranks among all ranks.
        """
        names = range(self.size) if ranks is None else ranks
        return tuple(
            WrongValue(
                rank=rank,
                bytes=size,
                expected=found[0],
                got=found[1] if isfinite(found[1]) else None,
            )
            for rank, found in zip(names, self.gather(mine), strict=True)
            if found is not None
        )

    def memory(self) -> int:
        """Bytes that a probe may take on each device: a quarter of the least free memory."""
        if self.on_gpu:
            import torch

            free = torch.cuda.mem_get_info(self.device)[0]
        else:
            found = host.memory()
            free = found.available
            if found.limit is not None and found.used_in_limit is not None:
                free = max(0, min(free, found.limit - found.used_in_limit))
            free //= self.size
        fullest: int = min(self.gather(free))
        return fullest // MEMORY_SHARE

    @property
    def dtype(self) -> torch.dtype:
        """The data type in which a run would train on this device."""
        import torch

        if not self.on_gpu:
            return torch.float32
        major, _ = torch.cuda.get_device_capability(self.device)
        if major >= 8:
            return torch.bfloat16
        return torch.float16 if major == 7 else torch.float32

    def square(self, matrices: int) -> int:
        """Rows of a square matrix of which ``matrices`` fit the memory."""
        size = MATMUL_SIZE[self.device.type]
        memory = self.memory()
        while matrices * size * size * self.dtype.itemsize > memory:
            size //= 2
        return size

    def nccl(self) -> nccl_log.Chosen:
        """NCCL's choices from the logs of all ranks; a field is empty if no log contains it."""
        text = ""
        if self.nccl_output is not None and self.nccl_output.exists():
            text = self.nccl_output.read_text(errors="replace")
        algorithms, transports, versions = zip(*self.gather(nccl_log.read(text)), strict=True)
        return nccl_log.Chosen(
            algorithm=algorithms[0],
            transports=tuple(sorted({one for some in transports for one in some})),
            version=versions[0],
        )

    def rounds(self, what: str, work: Callable[[], object], *, seconds: float) -> list[float]:
        """Seconds of each timed round of ``work``, after warming up: 20 rounds, or as many as fit.

        If ``seconds`` is too short for all rounds, rank 0 sets the number for all ranks.
        """
        trial = self.timed(f"{what}, first rounds", work, 2)
        affordable = int(seconds / max(trial[1], 1e-9))
        rounds = self.agree(max(FEWEST_ROUNDS, min(ROUNDS, affordable - WARM_UPS)))
        if rounds == ROUNDS:
            self.timed(f"{what}, warming up", work, WARM_UPS - len(trial))
        return self.timed(what, work, rounds)

    def timed(self, what: str, work: Callable[[], object], rounds: int) -> list[float]:
        """Seconds of each round in order; on a CPU the ranks begin each round together."""
        return (self._timed_on_gpu if self.on_gpu else self._timed_on_cpu)(what, work, rounds)

    def _timed_on_gpu(self, what: str, work: Callable[[], object], rounds: int) -> list[float]:
        import torch

        events = []
        new: Any = torch.cuda.Event
        for number in range(rounds):
            self.doing(f"{what}, round {number + 1}")
            begin, end = new(enable_timing=True), new(enable_timing=True)
            begin.record()
            work()
            end.record()
            events.append((begin, end))
        self.doing(f"{what}, waiting for the GPU")
        torch.cuda.synchronize(self.device)
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    def _timed_on_cpu(self, what: str, work: Callable[[], object], rounds: int) -> list[float]:
        import torch.distributed as dist

        seconds = []
        for number in range(rounds):
            self.doing(f"{what}, round {number + 1}")
            dist.barrier(self.group)
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
        return seconds


def join(journal: Journal, folder: Path, *, gpus: bool, store_prefix: str = "") -> ProbeWorld:
    """Join the process group: NCCL with one GPU per rank, or gloo without ``gpus``.

    NCCL's log goes to ``folder``, unless the user has set NCCL_DEBUG. ``store_prefix`` separates
    the keys of these ranks from those of earlier and later ranks in the same store.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    backend = "nccl" if gpus else "gloo"
    log = None
    if "NCCL_DEBUG" not in os.environ:
        log = folder / f"nccl-{os.environ['RANK']}.txt"
        os.environ |= nccl_log.SETTINGS | {"NCCL_DEBUG_FILE": str(log)}
    local_rank = int(os.environ["LOCAL_RANK"])
    # A launcher that assigns one GPU to each rank may hide all others from it.
    index = local_rank if torch.cuda.device_count() > 1 else 0
    device = torch.device("cuda", index) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    journal.write("waiting for the other ranks to join")
    store, rank, size = next(rendezvous("env://", timeout=JOIN_LIMIT))
    store = PrefixStore(store_prefix, store)
    journal.write(f"joining the {backend} group")
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=JOIN_LIMIT,
        device_id=device if gpus else None,
    )
    journal.write("joined")
    return ProbeWorld(
        rank=rank,
        local_rank=local_rank,
        size=size,
        host=socket.gethostname(),
        device=device,
        backend=backend,
        nccl_output=log,
        journal=journal,
        store=PrefixStore("ddoctor", store),
    )


def usable_gpus() -> int:
    """The number of GPUs that torch sees; 0 if this torch has no NCCL."""
    import torch
    import torch.distributed as dist

    count: int = torch.cuda.device_count()
    return count if dist.is_nccl_available() else 0


def by_host(places: Iterable[RankPlace]) -> dict[str, list[int]]:
    """The ranks of each host, both in the order of the ranks."""
    hosts: dict[str, list[int]] = {}
    for place in places:
        hosts.setdefault(place.host, []).append(place.rank)
    return hosts


def first_difference(expected: torch.Tensor, got: torch.Tensor) -> tuple[float, float] | None:
    """The first value that is not as expected, after the expected one; None: all are equal."""
    import torch

    if torch.equal(expected, got):
        return None
    at = int((expected != got).nonzero()[0])
    return float(expected[at]), float(got[at])


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth of an all-reduce in GB/s: nccl-tests' busbw, doc/PERFORMANCE.md.

    The factor 2(n-1)/n makes it comparable with the link speed for any number of ranks.
    """
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def _identity(device: torch.device) -> tuple[str, str]:
    """Model and PCI bus id, in the formats of ``ddoctor.evidence.gpus.Gpu``."""
    if device.type != "cuda":
        return "", ""
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return properties.name, ""
    domain, slot = properties.pci_domain_id, properties.pci_device_id
    return properties.name, f"{domain:04x}:{bus:02x}:{slot:02x}.0"
