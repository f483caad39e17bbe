"""Samples of threads: when they are taken, and copies of the stacks.

A held frame keeps the objects of its function alive.
"""

from __future__ import annotations

import _thread
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, chain, repeat, takewhile
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

from ddoctor.recorder.undisturbed import at_once, call, exhaust

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


def of_threads(main: int, most: int, *first: partial[Any]) -> Mapping[int, Copied]:
    """The innermost frames of the main thread and of all others but this one, by identifier.

    Of the main thread alone, if there are more than ``most``. ``first``: what is read at the same
    moment, by functions of C.

    No other thread runs meanwhile, and no garbage is collected. CPython 3.11 makes the object of a
    frame when ``f_back`` is read, which may collect garbage; while a finalizer runs, the thread
    whose frame it is may return, and the new object then refers to memory that is no frame any
    more: the process ended by SIGSEGV (Objects/frameobject.c, ``PyFrame_GetBack``). And what a
    function held, and this thread alone held at last, would be finalized in this thread.
    """
    frames: dict[int, FrameType] = {}
    threads: list[int] = []
    stacks: list[list[tuple[CodeType, int | None]]] = []
    alone = _thread._count() > most
    at_once(
        *first,
        partial(exhaust, map(frames.update, map(call, (partial(sys._current_frames),)))),
        partial(threads.extend, (main,) if alone else frames),
        partial(stacks.extend, _outward(map(frames.__getitem__, threads))),
        partial(frames.clear),
    )
    own = _thread.get_ident()
    return {
        thread: _linked(calls)
        for thread, calls in zip(threads, stacks, strict=True)
        if thread != own
    }


_NAMES = ("f_code", "f_lineno")


def _outward(frames: Iterable[FrameType]) -> Iterator[list[tuple[CodeType, int | None]]]:
    """Code and line of each frame and of those that lead to it, by functions of C alone."""
    back = map(chain, zip(frames), repeat(repeat("f_back")))
    whole = map(takewhile, repeat(bool), map(accumulate, back, repeat(getattr)))
    return map(list, map(map, repeat(attrgetter(*_NAMES)), whole))


def _linked(calls: Iterable[tuple[CodeType, int | None]]) -> Copied:
    """The innermost of frames that lead to each other, of which the innermost comes first."""
    copy: Copied | None = None
    for code, line in reversed(list(calls)):
        copy = Copied(code, line or 0, copy)
    assert copy is not None
    return copy


def copied(frame: FrameType) -> Copied:
    """A copy of a frame of this thread and of those that lead to it."""
    calls: list[tuple[CodeType, int | None]] = []
    outer: FrameType | None = frame
    while outer is not None:
        calls.append((outer.f_code, outer.f_lineno))
        outer = outer.f_back
    return _linked(calls)
