"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import signal
import sys


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone, however that ended."""
    if sys.platform == "linux":
        death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)
