"""Tie the life of a process to that of its parent."""

from __future__ import annotations

import ctypes
import signal
import sys


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends for any reason."""
    if sys.platform == "linux":
        death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)
