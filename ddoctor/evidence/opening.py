"""Opens what a user names as a file, which may be none."""

from __future__ import annotations

import os


def without_waiting(path: str, flags: int) -> int:
    """An opener for ``open``: a FIFO to which no process writes is empty, and not waited for."""
    opened = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(opened, True)
    return opened
