"""The script's threads besides the main one: their lines, and the CPU time that they use."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from types import CodeType

from ddoctor.evidence.threads import ScriptThread, busiest
from ddoctor.proc.files import text
from ddoctor.recorder import places, user_calls
from ddoctor.recorder.stacks import Copied

MOST_THREADS = 32
"""A thread beyond them has a small share of the interpreter."""

Line = tuple[CodeType, int]


class ScriptThreads:
    """Adds up what the samples of other threads show, since the training began."""

    def __init__(self, main: int) -> None:
        self._main = main
        self._lines: dict[int, Counter[Line]] = {}
        """Samples of each thread, by the user's line that leads to them."""
        self._first: dict[int, tuple[float, float]] = {}
        self._last: dict[int, tuple[float, float]] = {}
        """Time and CPU seconds of each thread, at first and at last."""

    def look(self, frames: Mapping[int, Copied]) -> None:
        """Sample the line of each thread that runs code of the user's."""
        for thread, frame in frames.items():
            if thread != self._main and (user := places.caller(frame)) is not None:
                lines = self._lines.setdefault(thread, Counter())
                lines[user.f_code, user.f_lineno] += 1

    def weigh(self) -> None:
        """Read the CPU time of these threads."""
        if not self._lines:
            return
        for one in threading.enumerate():
            if one.ident not in self._lines or (used := _cpu_seconds(one.native_id)) is None:
                continue
            now = (perf_counter(), used)
            if used < self._last.get(one.ident, now)[1]:
                # A new thread has the identifier of one that has ended.
                self._first[one.ident] = now
            self._first.setdefault(one.ident, now)
            self._last[one.ident] = now

    def seen(self) -> tuple[ScriptThread, ...]:
        """Each thread, with the line that shows what it does."""
        found = []
        for thread, (end, used) in list(self._last.items()):
            begin, before = self._first[thread]
            if end > begin:
                lines = {user_calls.frame(*call): n for call, n in self._lines[thread].items()}
                cpus = (used - before) / (end - begin)
                found.append(
                    ScriptThread(
                        rank=0,
                        place=busiest(lines, cpus),
                        cpus=round(cpus, 3),
                        seconds=round(end - begin, 3),
                    )
                )
        return tuple(found)


def _cpu_seconds(thread: int | None) -> float | None:
    """CPU seconds of a thread of this process; None: it has ended, or the kernel reports none."""
    words = text(Path(f"/proc/self/task/{thread}/schedstat")).split()
    return int(words[0]) / 1e9 if words else None
