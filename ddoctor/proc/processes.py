"""Processes that ddoctor started: sample their states, and end them reliably."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil

from ddoctor.proc import interruption

GONE = "gone"

# A single sample may catch a process in a short wait for a disk; a stopped rank stays stopped.
SAMPLES = 3
SAMPLE_EVERY_SECONDS = 0.2

# A process that survives longer hangs in the kernel, where no signal reaches it.
END_LIMIT_SECONDS = 5.0


def statuses(pids: Sequence[int]) -> Mapping[int, str]:
    """The most frequent of a few sampled states of each process: psutil's name, or ``gone``."""
    seen: dict[int, Counter[str]] = {pid: Counter() for pid in pids}
    for sample in range(SAMPLES):
        if sample:
            time.sleep(SAMPLE_EVERY_SECONDS)
        for pid, counter in seen.items():
            counter[_status(pid)] += 1
    return {pid: counter.most_common(1)[0][0] for pid, counter in seen.items()}


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return GONE


def carrying(**variables: str) -> list[psutil.Process]:
    """The processes that have all of these environment variables, the oldest first."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or belongs to another user
            if variables.items() <= process.environ().items():
                found.append(process)
    return sorted(found, key=psutil.Process.create_time)


def end(grace: float, **variable: str) -> tuple[int, ...]:
    """End every process that carries this environment variable; return the PIDs that survive.

    The oldest process gets SIGTERM and ``grace`` seconds, then all get SIGKILL. The variable finds
    processes whose parents have ended, too. Signals wait until all is done: an interruption would
    leave processes behind.
    """
    with undisturbed():
        found = carrying(**variable)
        if found:
            # torchrun ends its ranks cleanly on SIGTERM.
            with suppress(psutil.NoSuchProcess):
                found[0].terminate()
            psutil.wait_procs(found, timeout=grace)
        deadline = time.monotonic() + END_LIMIT_SECONDS
        while (found := carrying(**variable)) and time.monotonic() < deadline:
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=0.2)
        return tuple(process.pid for process in found)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let signals that end ddoctor wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, interruption.ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
