"""Threads of a training script besides its main thread."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.section import Part, Section

PAUSES = re.compile(r"\bsleep\(|\.(?:wait|join|get|put|acquire|recv|accept|select)\(")
"""The text of a line at which a thread waits."""
COMPUTES = 0.05
"""CPUs from which on a thread does more than to wake up and wait again."""


class ScriptThread(Part, frozen=True, kw_only=True):
    """A thread that runs code of the user's while the main thread trains."""

    rank: int
    place: Frame
    """The line of the user's that shows what it does: see ``busiest``."""
    within: tuple[Frame, ...] = ()
    """The ``with`` statements around its calls to that line, innermost last: what it may hold."""
    cpus: float
    """CPUs that it used, mean."""
    seconds: float
    """Seconds for which it was seen."""


class ScriptThreads(Section, frozen=True, kw_only=True):
    """Those of all ranks."""

    commands = ("run", "attach")

    threads: tuple[ScriptThread, ...]


def busiest(lines: Mapping[Frame, int], cpus: float) -> Frame:
    """Return the line that shows what a thread does, by the samples at each of its lines.

    It is the most frequent one. For a thread that uses a notable share of a CPU, it is the most
    frequent of those that do not wait, if there are any.
    """
    working = [line for line in lines if not PAUSES.search(line.text)]
    return max(working if working and cpus >= COMPUTES else lines, key=lambda line: lines[line])
