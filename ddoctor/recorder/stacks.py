"""Samples of threads: when they are taken, and copies of the stacks.

A held frame keeps the objects of its function alive.
"""

from __future__ import annotations

import _thread
import os
import random
import sys
import time
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

SOON_SECONDS = 1e-4
"""How long the main thread keeps the interpreter that the sampler asks for."""
SPREAD_SECONDS = 0.02
"""Longer than most calls that keep the interpreter. A sample then comes at any time after the end
of such a call, also in the middle of the next one."""
# The script's own numbers must stay as they are.
_chance = random.Random()
_usual: list[float] = []
"""The script's own switch interval, while it is shorter."""


class Copied(NamedTuple):
    """What a sample needs of a frame, under the names of the frame."""

    f_code: CodeType
    f_lineno: int
    f_back: Copied | None


AnyFrame: TypeAlias = FrameType | Copied


def at_random() -> None:
    """Return at a time that does not depend on what the other threads do.

    A thread that asks for the interpreter gets it after the switch interval, 5 ms, or when the
    other lets it go, as torch does in most operations: shorter work in Python would never be seen,
    and the operation after it all the more. The interval is shorter for a sample only, since it
    also decides how long the script's own threads wait for each other.

    It takes half of ``SPREAD_SECONDS`` in the mean.
    """
    _usual.append(sys.getswitchinterval())
    sys.setswitchinterval(SOON_SECONDS)
    time.sleep(_chance.uniform(0, SPREAD_SECONDS))
    _as_usual()


def _as_usual() -> None:
    # The script may have set another one meanwhile.
    if _usual and sys.getswitchinterval() < 2 * SOON_SECONDS:
        sys.setswitchinterval(_usual[0])
    _usual.clear()


# A worker may be forked in the middle of a sample.
os.register_at_fork(after_in_child=_as_usual)


def of_threads(main: int, most: int) -> Mapping[int, Copied]:
    """The innermost frames of the main thread and of all others but this one, by identifier.

    Of the main thread alone, if there are more than ``most``.
    """
    frames = sys._current_frames()
    # Its own frame has this variable: a cycle, which would keep what all of them hold.
    del frames[_thread.get_ident()]
    alone = len(frames) > most
    return {one: copied(frame) for one, frame in frames.items() if one == main or not alone}


def copied(frame: FrameType) -> Copied:
    """A copy of a frame and of those that lead to it."""
    calls = []
    outer: FrameType | None = frame
    while outer is not None:
        calls.append((outer.f_code, outer.f_lineno or 0))
        outer = outer.f_back
    copy = Copied(*calls.pop(), None)
    while calls:
        copy = Copied(*calls.pop(), copy)
    return copy
