"""Memory of a process that the kernel cannot simply reclaim."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KIB_PER_MIB = 1024
HELD = ("RssAnon:", "RssShmem:")
SWAPPED = ("VmSwap:",)


def held(pid: int | str = "self") -> float | None:
    """Resident MiB without file pages; None: the process has ended.

    The pages of a memory-mapped dataset grow while a process reads it. The kernel reclaims them
    when another process needs memory.
    """
    return _sum(pid, HELD)


def swapped(pid: int) -> float | None:
    """MiB that the kernel has swapped to disk; None: the process has ended."""
    return _sum(pid, SWAPPED)


def _sum(pid: int | str, names: tuple[str, ...]) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        return sum_of(Path(f"/proc/{pid}/status").read_text().splitlines(), names)
    return None


def sum_of(lines: Sequence[str], names: tuple[str, ...]) -> float | None:
    """MiB of all lines of /proc/PID/status with these names; None: no line has one of them."""
    kib = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(kib) / KIB_PER_MIB if kib else None
