"""Tracebacks as Python would show them without ddoctor."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

RECORDER = Path(__file__).parent
# What stands before it runs ddoctor; the script, or Python's own -m, follows.
RUN = str(RECORDER / "script.py"), "run"


def hide() -> None:
    """Show uncaught exceptions without ddoctor."""
    show = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        strip(error)
        show(kind, error, own(trace))

    sys.excepthook = excepthook


def strip(error: BaseException) -> None:
    """Remove ddoctor from the exception, its causes and contexts, and the members of its group."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and not any(one is other for other in seen):
            seen.append(one)
            one.__traceback__ = own(one.__traceback__)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def own(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of ddoctor, and without those before the script."""
    frames: list[TracebackType] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if (code.co_filename, code.co_name) == RUN:
            frames.clear()
        elif not code.co_filename.startswith(f"{RECORDER}/"):
            frames.append(trace)
        trace = trace.tb_next
    found: TracebackType | None = None
    for one in reversed(frames):
        found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found
