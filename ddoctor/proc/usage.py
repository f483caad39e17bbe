"""CPU and memory use of the processes of one rank, sampled from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil

from ddoctor.evidence.training import RankHost
from ddoctor.proc import cgroup
from ddoctor.proc.files import text
from ddoctor.proc.memory import held
from ddoctor.proc.run_queue import queued

MIB = 2**20
TICKS = os.sysconf("SC_CLK_TCK")
MOST_SAMPLES = 2000
# Importing torch takes a few CPU seconds; a child that trains uses more than its waiting parent.
CHILDREN_SECONDS = 1.0
DATA_WORKER = "pt_data_worker"
"""torch's name for DataLoader workers (torch/utils/data/_utils/worker.py)."""

Reading = tuple[float, float, float, float | None]
"""Time, CPU seconds of the rank and of its host, and seconds that its main thread waited for a CPU.

Those of the host with what other virtual machines took (steal); None: the kernel reports no wait.
"""
Counters = tuple[float, float, float, float | None, cgroup.Quota, float]
"""Time; CPU seconds of the rank and of the host; seconds that it waited for a CPU; its quota.

Last, CPU seconds that other virtual machines took of the host."""
Span = tuple[float, float]
"""Begin and end of a time."""
MOST_KEPT = 400
HELPS, HELPS_SECONDS = 0.2, 2.0
"""CPUs from which on another child process of a rank is of interest, and how long it is seen."""


def neighbours(uses: Sequence[tuple[float, float, float]], own: float = 0.0) -> float | None:
    """CPUs of a host that others used: its busy CPUs minus those of the ranks; None: not known.

    ``uses``: of each rank, as ``HostUse.used``. ``own``: CPU seconds of py-spy.
    """
    seconds = max(seconds for _, _, seconds in uses)
    if seconds <= 0:
        return None
    busy = max(busy for _, busy, _ in uses)
    ranks = sum(used for used, _, _ in uses)
    return round(max(0.0, busy - ranks - own) / seconds, 3)


class HostUse:
    """CPU and memory use of one rank, from counters at both ends of the judged time."""

    def __init__(self, pid: int, rank: int, host: str, local_ranks: int) -> None:
        self._pid, self._rank, self._host, self._local = pid, rank, host, local_ranks
        self._cpu = cgroup.controller("cpu")
        self._counters: list[Counters] = []
        self._workers = 0
        self._helpers: dict[int, tuple[tuple[float, float], tuple[float, float]]] = {}
        """Time and CPU seconds of its other child processes that live, at first and at last."""
        self._affinity: tuple[int, ...] = ()
        self._worker_masks: Sequence[tuple[int, ...]] = ()
        self.workers_memory: list[tuple[float, float]] = []
        self.worker_memory: float | None = None
        self.children_seconds = 0.0

    def read_counters(self, *, keep: bool = False) -> None:
        """Read the counters; the first and the last reading bound the judged time.

        ``keep``: keep the last MOST_KEPT readings, so that any time between them can be judged.
        """
        quota = cgroup.quota(self._cpu)
        busy, stolen = _busy()
        counters = (perf_counter(), self._used(), busy, queued(self._pid), quota, stolen)
        if self._counters and not Path(f"/proc/{self._pid}").exists():
            return  # its counters ended with the process: keep the last reading
        if not self._counters:
            self._helpers.clear()  # what they did to start is no part of the judged time
        kept = self._counters[1 - MOST_KEPT :] if keep else self._counters[:1]
        self._counters = [*kept, counters]

    def sample_workers(self) -> None:
        """Count the DataLoader workers, and read their memory and CPU masks."""
        self._affinity = _mask(self._pid) or self._affinity
        workers = _children(self._pid)
        masks = [mask for pid in workers if _loads_data(pid) and (mask := _mask(pid))]
        # Prefer a sample of many workers: one that has just started still has the rank's mask.
        if (len(masks), -len(_union(masks))) > (
            len(self._worker_masks),
            -len(_union(self._worker_masks)),
        ):
            self._worker_masks = masks
        if workers:  # else they may have ended with the rank
            self._helpers = {
                pid: (self._helpers.get(pid, (now, now))[0], now)
                for pid in workers
                if not _loads_data(pid)
                for now in [(perf_counter(), cpu_seconds(pid))]
            }
        self._workers = max(self._workers, len(workers))
        if len(self.workers_memory) >= MOST_SAMPLES:
            # Of a long run the last ones are of interest.
            del self.workers_memory[: MOST_SAMPLES // 2]
        if workers:
            sizes = [size for pid in workers if (size := held(pid)) is not None]
            self.workers_memory.append((perf_counter(), sum(sizes)))

    @property
    def helpers(self) -> Mapping[int, float]:
        """The CPUs that its child processes use which are no DataLoader workers, by PID."""
        return {
            pid: cpus
            for pid, (first, last) in self._helpers.items()
            if last[0] - first[0] >= HELPS_SECONDS
            and (cpus := (last[1] - first[1]) / (last[0] - first[0])) >= HELPS
        }

    def sample_children(self) -> None:
        """Read whether Python processes that the script started work instead of the script."""
        seconds = sum(cpu_seconds(pid) for pid in _descendants(self._pid) if _of_python(pid))
        if seconds > max(CHILDREN_SECONDS, cpu_seconds(self._pid)):
            self.children_seconds = max(self.children_seconds, seconds)

    def measure_worker(self) -> None:
        """Read the unshared memory of a typical worker; it takes a millisecond, so call it once."""
        own = []
        for pid in _children(self._pid):
            with suppress(psutil.Error, OSError):
                own.append(psutil.Process(pid).memory_full_info().uss / MIB)
        if own:
            self.worker_memory = median(own)

    def summary(self, *, threads: int, asked: str, span: Span | None = None) -> RankHost:
        """The evidence of all samples; ``asked`` is the rank's OMP_NUM_THREADS.

        ``span``: the judged time; None: that between the first reading and the last.
        """
        first, last = self._ends(span)
        judged = last[0] - first[0]
        asked = asked.partition(",")[0].strip()
        own = _union(self._worker_masks)
        periods, throttled = last[4].since(first[4])
        waited = last[3] - first[3] if last[3] is not None and first[3] is not None else None
        return RankHost(
            rank=self._rank,
            host=self._host,
            local_ranks=self._local,
            threads=threads,
            omp_threads=int(asked) if asked.isdecimal() else None,
            affinity=self._affinity,
            host_cpus=os.cpu_count() or 1,
            quota=cgroup.quota(self._cpu).cpus,
            workers=self._workers,
            helpers=round(sum(self.helpers.values()), 3),
            worker_affinity=own if own != self._affinity else (),
            periods=periods,
            throttled_periods=throttled,
            waited=waited / judged if waited is not None and judged > 0 else None,
        )

    def used(self, span: Span | None = None) -> tuple[float, float, float]:
        """CPU seconds of this rank's processes and of the whole host, and the judged seconds."""
        first, last = self._ends(span)
        return last[1] - first[1], last[2] - first[2], last[0] - first[0]

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The readings that are kept, oldest first."""
        return tuple(
            (time, used, busy + stolen, waited)
            for time, used, busy, waited, _, stolen in self._counters
        )

    def _ends(self, span: Span | None) -> tuple[Counters, ...]:
        if not self._counters:
            self.read_counters()
        if span is None:
            return self._counters[0], self._counters[-1]
        begin, end = span
        before = [one for one in self._counters if one[0] <= begin] or self._counters[:1]
        after = [one for one in self._counters if one[0] >= end] or self._counters[-1:]
        return before[-1], after[0]

    def _used(self) -> float:
        # Loader workers may end before the last reading.
        ended = cpu_seconds(self._pid, children=True)
        return ended + sum(cpu_seconds(pid) for pid in (os.getpid(), *_children(self._pid)))


def busy(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    return sum(cpu_seconds(one) for one in (pid, *_children(pid)))


def stopped(pid: int) -> bool:
    """Whether a signal has stopped the process (not a debugger: that is ``t``)."""
    return text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].lstrip()[:1] == "T"


def data_workers(pid: int) -> tuple[int, ...]:
    """The DataLoader workers of a process that have begun to work."""
    return tuple(filter(_loads_data, _children(pid)))


def _children(pid: int) -> tuple[int, ...]:
    return tuple(map(int, text(Path(f"/proc/{pid}/task/{pid}/children")).split()))


def _mask(pid: int) -> tuple[int, ...]:
    """The CPUs that the main thread of a process may use; empty: the process has ended."""
    with suppress(OSError):
        return tuple(sorted(os.sched_getaffinity(pid)))
    return ()


def _union(masks: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The CPUs of all of them together."""
    return tuple(sorted(set().union(*masks)))


def _loads_data(pid: int) -> bool:
    """Whether the process is a DataLoader worker that has begun to work."""
    return text(Path(f"/proc/{pid}/comm")) == DATA_WORKER


def _descendants(pid: int) -> Iterator[int]:
    """All processes that its threads started, and those that these started."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for word in text(Path(f"/proc/{pid}/task/{thread}/children")).split():
                yield int(word)
                yield from _descendants(int(word))


def _of_python(pid: int) -> bool:
    with suppress(OSError):
        return not _loads_data(pid) and "python" in Path(os.readlink(f"/proc/{pid}/exe")).name
    return False


def cpu_seconds(pid: int, *, children: bool = False) -> float:
    """User and system time, fields 14 and 15 of proc(5)'s stat; 0: the process has ended.

    ``children``: and fields 16 and 17, those of children that have ended.
    """
    fields = text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / TICKS


def _busy() -> tuple[float, float]:
    """CPU seconds of the whole host, and those that other virtual machines took of it (steal)."""
    times = psutil.cpu_times()
    stolen = float(getattr(times, "steal", 0.0))
    idle = times.idle + getattr(times, "iowait", 0.0)
    return float(sum(times[:8]) - idle - stolen), stolen
