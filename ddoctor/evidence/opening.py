"""Opens what a user names as a file, which may be none."""

from __future__ import annotations

import errno
import os


def without_waiting(path: str, flags: int) -> int:
    """An opener for ``open``: no FIFO is waited for.

    One to which no process writes is empty, and one from which no process reads is an error.
    """
    try:
        opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "there is no process at its other end", path) from None
    os.set_blocking(opened, True)
    return opened
