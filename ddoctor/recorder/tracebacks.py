"""Tracebacks as Python would show them without ddoctor."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

RECORDER = Path(__file__).parent
# What stands before it runs ddoctor; the script, or Python's own -m, follows.
RUN = str(RECORDER / "script.py"), "run"


def install() -> None:
    """Have Python's own module leave ddoctor out, as scripts print and log what they catch."""
    module: Any = traceback
    # The second since Python 3.11.
    for name in ("walk_tb", "_walk_tb_with_full_positions"):
        if (walk := getattr(module, name, None)) is not None:
            setattr(module, name, _without_ddoctor(walk))
    stack = module.walk_stack

    @wraps(stack)
    def walk_stack(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        # Without a frame, it counts from its own place on the stack.
        return stack(frame) if frame is None else _own_frames(stack(frame))

    module.walk_stack = walk_stack


def _without_ddoctor(walk: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(walk)
    def call(trace: TracebackType | None) -> Any:
        return walk(own(trace))

    return call


def _own_frames(pairs: Iterator[tuple[FrameType, int]]) -> Iterator[tuple[FrameType, int]]:
    for frame, line in pairs:
        if (frame.f_code.co_filename, frame.f_code.co_name) == RUN:
            return
        if not _ours(frame):
            yield frame, line


def hide() -> None:
    """Show uncaught exceptions without ddoctor."""
    show = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # What runs after it, at exit, finds the script's own.
        sys.excepthook = show
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
        elif not _ours(trace.tb_frame):
            frames.append(trace)
        trace = trace.tb_next
    found: TracebackType | None = None
    for one in reversed(frames):
        found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(f"{RECORDER}/")
