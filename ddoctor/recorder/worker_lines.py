"""The user's lines that a loader's worker is at while it makes batches, by a thread in it."""

from __future__ import annotations

import _thread
import linecache
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from ddoctor.evidence import redaction
from ddoctor.evidence.steps import HotLine
from ddoctor.proc.memory import malloc_free
from ddoctor.recorder import places, stacks
from ddoctor.recorder.harmless import harmless

EVERY_SECONDS, LATER_SECONDS = 0.05, 0.25
FIRST_LOOKS = 200
"""10 seconds; each sample takes the interpreter from the worker for a moment."""
ROOM = 1024
"""Bytes of shared memory for one worker."""
MOST_LINES = 3
Line: TypeAlias = tuple[str, int, str]
"""File, line and function."""


class WorkerLines:
    """Counts the lines of this process's main thread, and writes the most frequent into memory."""

    def __init__(self, room: Any, free: Any) -> None:
        """``room``: for the lines. ``free``: a cell for the MiB that malloc keeps free."""
        self._room, self._free = room, free
        self._met: Counter[Line] = Counter()
        self._thread = threading.main_thread().ident or 0
        self.busy = False
        """Whether it makes a batch."""

    def start(self) -> None:
        """Start to sample; the thread ends with the worker."""
        # Unknown to threading, as the sampler's.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        looks, pause = 0, threading.Event()
        every = EVERY_SECONDS
        while not pause.wait(every - stacks.SPREAD_SECONDS / 2):
            looks += 1
            every = EVERY_SECONDS if looks < FIRST_LOOKS else LATER_SECONDS
            stacks.at_random()
            if self.busy:
                self._look()
                self._free[0] = malloc_free() or 0.0

    @harmless
    def _look(self) -> None:
        user = places.caller(stacks.of_threads(self._thread, 0).get(self._thread))
        if user is None:
            return
        code = user.f_code
        self._met[code.co_filename, user.f_lineno, code.co_name] += 1
        written = msgspec.json.encode(self._met.most_common(MOST_LINES))
        if len(written) < ROOM:
            self._room[: len(written) + 1] = written + b"\0"


def most_frequent(rooms: Iterable[Any]) -> tuple[HotLine, ...]:
    """The lines of all workers of a loader, the most frequent first."""
    met: Counter[Line] = Counter()
    for room in rooms:
        for line, samples in _read(bytes(room).partition(b"\0")[0]) or ():
            met[line] += samples
    return tuple(
        HotLine(
            phase="loader",
            file=places.short(file),
            line=line,
            function=function,
            text=redaction.text(linecache.getline(file, line).strip()),
            samples=samples,
        )
        for (file, line, function), samples in met.most_common(MOST_LINES)
    )


@harmless
def _read(written: bytes) -> list[tuple[Line, int]]:
    """Empty: nothing is there; None: it is just being written."""
    return msgspec.json.decode(written or b"[]", type=list[tuple[Line, int]])
