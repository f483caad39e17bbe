"""What must happen before another thread runs, and before garbage is collected."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

call: Callable[[Any], Any] = partial.__call__
exhaust: partial[Any] = partial(deque, maxlen=0)


def at_once(*steps: partial[Any]) -> None:
    """Run these without giving up the interpreter, and without collections of garbage.

    Functions of C that call each other never ask whether another thread waits. So a step may call
    nothing that is written in Python.
    """
    collects: list[bool] = []
    restore: tuple[partial[Any], ...] = (partial(bool), partial(gc.enable))
    try:
        exhaust(
            map(
                call,
                (
                    partial(collects.extend, map(call, (partial(gc.isenabled),))),
                    partial(gc.disable),
                    *steps,
                    partial(exhaust, map(call, map(restore.__getitem__, collects))),
                ),
            )
        )
    except BaseException:
        if any(collects):
            gc.enable()
        raise
