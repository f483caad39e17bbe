"""Tie the life of a process to that of its parent."""

from __future__ import annotations

import ctypes
import signal
import sys

# Loaded before any fork: between fork and exec, another thread's lock would stay locked for ever.
LIBRARY = ctypes.CDLL(None)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends for any reason.

    As ``preexec_fn`` of a process that ddoctor starts, no moment is left in which it could survive.
    """
    if sys.platform == "linux":
        death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        LIBRARY.prctl(death_signal, number)
