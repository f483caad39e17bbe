"""Times Python's garbage collector, without losing what the handler of a signal raises meanwhile.

A signal that comes while Python collects is handled in the next Python code. That is the callback
of this module, and what is raised there does not reach the script: Python shows and drops it.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import sys
import time
from signal import SIGINT, default_int_handler, getsignal
from typing import Any

from ddoctor.recorder.tape import GC
from ddoctor.recorder.timeline import Timeline

LATER_SECONDS = 0.001
LONG_SECONDS = 0.01
"""A collection of this time goes to the sampler, which cannot run meanwhile."""


def install(timeline: Timeline) -> None:
    """Time every collection in the recorded thread."""

    def collecting(phase: str, info: dict[str, int]) -> None:
        if timeline.here():
            if phase == "start":
                timeline.enter(GC)
            elif timeline.phase == GC:
                began = timeline.last
                seconds = timeline.leave() - began
                # Python collects without a frame, too, as at its end.
                caller = sys._getframe().f_back
                if seconds >= LONG_SECONDS and caller is not None:
                    timeline.collected(caller, seconds)

    show = sys.unraisablehook

    def dropped(by_python: Any) -> None:
        if by_python.object is not collecting or not timeline.here():
            show(by_python)
            return
        if timeline.phase == GC:
            timeline.leave()
        _thread.start_new_thread(_raise, (timeline.main, by_python.exc_value))

    gc.callbacks.append(collecting)
    sys.unraisablehook = dropped


def _raise(thread: int, error: BaseException) -> None:
    """Raise it in another thread, which has left the collector by then."""
    time.sleep(LATER_SECONDS)
    if isinstance(error, KeyboardInterrupt) and getsignal(SIGINT) is default_int_handler:
        # This also ends a wait.
        os.kill(os.getpid(), SIGINT)
        return
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(_with_its_values(error))
    )


def _with_its_values(error: BaseException) -> type[BaseException]:
    """A class whose instances are like the exception: a thread can be given a class only."""
    kind = type(error)
    python: Any = next(one for one in kind.__mro__ if one.__module__ == "builtins")

    def begin(same: BaseException) -> None:
        python.__init__(same, *error.args)
        vars(same).update(vars(error))

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**names, "__init__": begin})
