"""The state of a process at one moment, from the kernel."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddoctor.proc.memory import HELD, sum_of
from ddoctor.proc.processes import GONE

MIB = 2**20
# Share of a CPU: a thread that works only now and then is not computing.
LEAST_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ProcessSnapshot:
    """The resources that a process has used so far, and its state."""

    moment: float
    """Seconds of a monotonic clock."""
    state: str = GONE
    """The name that psutil gives the state, or ``gone``."""
    cpu_seconds: float = 0.0
    threads: Mapping[int, float]
    """CPU seconds of each thread; the first is the main thread."""
    resident_mib: float = 0.0
    moved_mib: float = 0.0
    """Read and written, from and to files, pipes and terminals."""
    major_faults: int = 0
    runnable: float | None = None
    """Seconds that its main thread was on a CPU or waited for one; None: not known."""
    sleeps: int = 0
    """Number of times that its main thread went to sleep."""

    def asleep(self, later: ProcessSnapshot) -> float | None:
        """Return the share of the time until ``later`` in which its main thread slept, 0 to 1."""
        if self.runnable is None or later.runnable is None:
            return None
        share = (later.runnable - self.runnable) / max(later.moment - self.moment, 1e-3)
        return min(max(1.0 - share, 0.0), 1.0)

    def used(self, later: ProcessSnapshot) -> Mapping[int, float]:
        """Return CPU seconds of each thread until ``later``, the main thread first."""
        return {
            thread: max(0.0, seconds - self.threads.get(thread, 0.0))
            for thread, seconds in later.threads.items()
        }

    def computing(self, later: ProcessSnapshot, *, without: Collection[int] = ()) -> int:
        """Return the number of threads that worked at least half as much as the main thread.

        ``without``: threads that run Python code of the user's.
        """
        used = self.used(later)
        main, *others = (second for thread, second in used.items() if thread not in without)
        return 1 + sum(second >= max(main / 2, LEAST_SECONDS) for second in others)


class Sleep:
    """The longest time without a wake-up of a main thread."""

    def __init__(self) -> None:
        self._times, self._since = -1, 0.0
        self.longest = 0.0
        """Seconds."""

    def look(self, times: int) -> None:
        """Add a sample taken now; ``times``: how often it has gone to sleep so far."""
        now = time.monotonic()
        if times != self._times:
            self._times, self._since = times, now
        self.longest = max(self.longest, now - self._since)


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """The state of a process that is cheap enough to read twice a second."""

    in_disk: bool
    """Whether it is in uninterruptible sleep (D), mostly a read or write."""
    sleeps: int
    """Number of times that its main thread went to sleep."""
    held_mib: float | None


def process_state(pid: int) -> ProcessState | None:
    """Read the state from one file; None: the process is gone."""
    with suppress(OSError, KeyError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        told = dict(line.split(":", 1) for line in lines)
        return ProcessState(
            in_disk=told["State"].split()[0] == "D",
            sleeps=int(told["voluntary_ctxt_switches"]),
            held_mib=sum_of(lines, HELD),
        )
    return None


def snapshot(process: psutil.Process) -> ProcessSnapshot:
    """Read the resources that a process has used so far."""
    with suppress(psutil.Error), process.oneshot():
        times = process.cpu_times()
        threads = {one.id: one.user_time + one.system_time for one in process.threads()}
        return ProcessSnapshot(
            moment=time.monotonic(),
            state=str(process.status()),
            cpu_seconds=times.user + times.system,
            threads={process.pid: 0.0} | threads,
            resident_mib=process.memory_info().rss / MIB,
            moved_mib=_moved(process) / MIB,
            major_faults=_major_faults(process.pid),
            runnable=_runnable(process.pid),
            # /proc/PID/status counts those of the main thread only.
            sleeps=process.num_ctx_switches().voluntary,
        )
    return ProcessSnapshot(moment=time.monotonic(), threads={process.pid: 0.0})


def _moved(process: psutil.Process) -> int:
    with suppress(psutil.Error, NotImplementedError, AttributeError):
        counted = process.io_counters()
        return int(counted.read_chars + counted.write_chars)
    return 0


def _major_faults(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9])
    return 0


def _runnable(pid: int) -> float | None:
    """Return seconds on a CPU and in a run queue (Documentation/scheduler/sched-stats.rst)."""
    with suppress(OSError, ValueError):
        on_cpu, queued, *_ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return (int(on_cpu) + int(queued)) / 1e9
    return None
