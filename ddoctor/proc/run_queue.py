"""How long a thread was ready to run, and had no CPU."""

from __future__ import annotations

from pathlib import Path

from ddoctor.proc.files import text


def queued(pid: int | str = "self") -> float | None:
    """Seconds that the main thread waited for a CPU; None: the kernel does not report it."""
    fields = text(Path(f"/proc/{pid}/schedstat")).split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else None
