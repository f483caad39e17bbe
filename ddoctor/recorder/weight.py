"""What a process holds in memory that the kernel cannot simply take back."""

from __future__ import annotations

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
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kib = [int(line.split()[1]) for line in lines if line.startswith(names)]
        return sum(kib) / KIB_PER_MIB if kib else None
    return None
