"""Threads of a training script besides its main thread."""

from __future__ import annotations

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.section import Part, Section


class ScriptThread(Part, frozen=True, kw_only=True):
    """A thread that runs code of the user's while the main thread trains."""

    rank: int
    place: Frame
    """The line of the user's that it was sampled in most often."""
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
