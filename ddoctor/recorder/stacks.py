"""Copies of the threads' stacks: a held frame keeps the objects of its function alive."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias


class Copied(NamedTuple):
    """What a sample needs of a frame, under the names of the frame."""

    f_code: CodeType
    f_lineno: int
    f_back: Copied | None


AnyFrame: TypeAlias = FrameType | Copied


def of_threads(main: int, most: int) -> Mapping[int, Copied]:
    """The innermost frames of the main thread and of all others but this one, by identifier.

    Of the main thread alone, if there are more than ``most``.
    """
    frames = sys._current_frames()
    # Its own frame has this variable: a cycle, which would keep what all of them hold.
    del frames[_thread.get_ident()]
    alone = len(frames) > most
    return {one: _copied(frame) for one, frame in frames.items() if one == main or not alone}


def _copied(frame: FrameType) -> Copied:
    calls = []
    outer: FrameType | None = frame
    while outer is not None:
        calls.append((outer.f_code, outer.f_lineno or 0))
        outer = outer.f_back
    copy = Copied(*calls.pop(), None)
    while calls:
        copy = Copied(*calls.pop(), copy)
    return copy
