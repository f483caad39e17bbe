"""What a process holds in memory that the kernel cannot simply take back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KIB_PER_MIB = 1024
HELD = ("RssAnon:", "RssShmem:")
SWAPPED = ("VmSwap:",)


def held(pid: int | str = "self") -> float | None:
    """MiB resident, without the pages of files: those of a dataset that is mapped into memory grow
    as it is read, and are given back when somebody needs the memory. None: it is gone."""
    return _sum(pid, HELD)


def swapped(pid: int) -> float | None:
    """MiB that the kernel has moved to a disk; None: the process is gone."""
    return _sum(pid, SWAPPED)


def _sum(pid: int | str, names: tuple[str, ...]) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        return sum_of(Path(f"/proc/{pid}/status").read_text().splitlines(), names)
    return None


def sum_of(lines: Sequence[str], names: tuple[str, ...]) -> float | None:
    """MiB of the lines of /proc/PID/status that begin so; None: there are none."""
    kib = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(kib) / KIB_PER_MIB if kib else None
