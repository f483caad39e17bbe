"""How long a real process sleeps."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from ddoctor.live.process_snapshots import Sleep, process_state

LOOKS, EVERY_SECONDS = 10, 0.2


@contextmanager
def sleeper(seconds: float) -> Iterator[psutil.Process]:
    script = f"import time\nprint(flush=True)\nwhile True: time.sleep({seconds})"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def longest(process: psutil.Process) -> float:
    sleep = Sleep()
    for _ in range(LOOKS):
        if (seen := process_state(process.pid)) is not None:
            sleep.look(seen.sleeps)
        time.sleep(EVERY_SECONDS)
    return sleep.longest


def test_who_wakes_often() -> None:
    with sleeper(0.001) as process:
        assert longest(process) < LOOKS * EVERY_SECONDS / 2


def test_who_does_not_wake() -> None:
    with sleeper(1000.0) as process:
        assert longest(process) >= (LOOKS - 2) * EVERY_SECONDS


def test_who_is_gone() -> None:
    with sleeper(1000.0) as process:
        pass
    assert longest(process) == 0.0
