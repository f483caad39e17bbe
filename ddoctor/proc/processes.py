"""Processes of our own: how they are, and their certain end."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil

GONE = "gone"

# One look may meet any process in a short wait for a disk; what stops a rank lasts.
LOOKS = 3
LOOK_EVERY_SECONDS = 0.2

# What is left then hangs in the kernel, where no signal reaches it.
END_LIMIT_SECONDS = 5.0


def statuses(pids: Sequence[int]) -> Mapping[int, str]:
    """The state in which each process was met most often: psutil's name for it, or ``gone``."""
    seen: dict[int, Counter[str]] = {pid: Counter() for pid in pids}
    for look in range(LOOKS):
        if look:
            time.sleep(LOOK_EVERY_SECONDS)
        for pid, counter in seen.items():
            counter[_status(pid)] += 1
    return {pid: counter.most_common(1)[0][0] for pid, counter in seen.items()}


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return GONE


def carrying(**variables: str) -> list[psutil.Process]:
    """The processes that have all of these environment variables, the eldest first."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone meanwhile, or another user's
            if variables.items() <= process.environ().items():
                found.append(process)
    return sorted(found, key=psutil.Process.create_time)


def end(grace: float, **mark: str) -> tuple[int, ...]:
    """End every process that carries this environment variable, the eldest gently; who remains.

    The mark finds them whatever became of their parents. An interruption waits until this is done:
    half of it would leave processes behind.
    """
    with _undisturbed():
        marked = carrying(**mark)
        if marked:
            # torchrun ends its ranks in order when it is asked to.
            with suppress(psutil.NoSuchProcess):
                marked[0].terminate()
            psutil.wait_procs(marked, timeout=grace)
        deadline = time.monotonic() + END_LIMIT_SECONDS
        while (marked := carrying(**mark)) and time.monotonic() < deadline:
            for process in marked:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(marked, timeout=0.2)
        return tuple(process.pid for process in marked)


@contextmanager
def _undisturbed() -> Iterator[None]:
    interruptions = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, interruptions)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
