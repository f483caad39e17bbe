"""Memory of a process that the kernel cannot simply reclaim."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ddoctor.proc.files import text

KIB_PER_MIB = 1024
HELD = ("RssAnon:", "RssShmem:")
SWAPPED = ("VmSwap:",)
FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
"""Of glibc's struct mallinfo2, see mallinfo(3)."""


def held(pid: int | str = "self") -> float | None:
    """Resident MiB without file pages, which the kernel can reclaim; None: the process ended."""
    return sum_of(text(Path(f"/proc/{pid}/status")).splitlines(), HELD)


def swapped(pid: int) -> float | None:
    """MiB that the kernel has swapped to disk; None: the process has ended."""
    return sum_of(text(Path(f"/proc/{pid}/status")).splitlines(), SWAPPED)


def malloc_free() -> float | None:
    """MiB that malloc keeps free in the heaps of this process; None: it is not glibc's malloc.

    A training on a CPU frees tensors of several MiB between small ones. The heaps then grow by
    hundreds of MiB of such gaps, although nothing leaks.
    """
    information = _mallinfo()
    return information().fordblks / 2**20 if information is not None else None


@cache
def _mallinfo() -> Any:
    """glibc's function; mallinfo2 counts beyond 4 GiB, and came with glibc 2.33."""
    library = ctypes.CDLL(None)
    for name, kind in (("mallinfo2", ctypes.c_size_t), ("mallinfo", ctypes.c_uint)):
        if (found := getattr(library, name, None)) is not None:
            rows = {"_fields_": [(field, kind) for field in FIELDS]}
            found.restype = type(name, (ctypes.Structure,), rows)
            return found
    return None


def sum_of(lines: Sequence[str], names: tuple[str, ...]) -> float | None:
    """MiB of all lines of /proc/PID/status with these names; None: no line has one of them."""
    kib = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(kib) / KIB_PER_MIB if kib else None
