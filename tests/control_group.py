"""A new control group with a limit, in which a test runs processes for real."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
PERIOD = 100_000

_numbers = count()


def cpu_share(share: float) -> tuple[str, str, str]:
    """The CPU time of a group, in CPUs: the controller, and its files and values in v1 and v2."""
    quota = f"{share * PERIOD:.0f}"
    return "cpu", f"cpu.cfs_quota_us {quota}", f"cpu.max {quota} {PERIOD}"


def memory(limit: int) -> tuple[str, str, str]:
    """The memory of a group, in bytes, in the same form."""
    return "memory", f"memory.limit_in_bytes {limit}", f"memory.max {limit}\nmemory.swap.max 0"


@contextmanager
def group(controller: str, v1: str, v2: str) -> Iterator[Path]:
    """Make the group; the test is skipped where that cannot be done."""
    old = (ROOT / controller / v1.split()[0]).exists()
    top = ROOT / controller if old else ROOT
    folder = top / f"ddoctor-{os.getpid()}-{next(_numbers)}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"may not make a cgroup: {error}")
    try:
        for line in (v1 if old else v2).splitlines():
            file, value = line.split(" ", 1)
            (folder / file).write_text(value)
        yield folder
    except OSError as error:
        pytest.skip(f"may not limit {controller}: {error}")
    finally:
        folder.rmdir()
