"""A thread that samples lines of the script and its memory, several times a second."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ddoctor.evidence.steps import COLLECT, HotLine
from ddoctor.proc.memory import held, malloc_free
from ddoctor.recorder import hooks, places, stacks, tape, user_calls
from ddoctor.recorder.calls import counts
from ddoctor.recorder.script_threads import MOST_THREADS, ScriptThreads
from ddoctor.recorder.stacks import AnyFrame, Copied
from ddoctor.recorder.timeline import Timeline
from ddoctor.recorder.user_calls import Calls

EVERY_SECONDS = 0.05
FIRST_LOOKS = 400
"""20 seconds of samples, and as many again once the training begins. Long activities need fewer
samples, and each one takes the interpreter from the main thread for a moment."""
LATER_SECONDS = 0.25
WEIGH_EVERY, WEIGH_LATER = 2, 10
"""Samples of the main thread per reading of the memory."""
WEIGHED_OFTEN = 60
"""3 seconds of samples: the kernel needs five times as long for a reading of the memory as a sample
takes."""
MOST_SAMPLES = 20_000
MOST_PLACES = 500
WRITE_AFTER_SECONDS = 2.0
"""Seconds to the first write; the interval doubles each time, to at most a minute."""
STOP_SECONDS = 5.0
PASSES = (tape.FORWARD, tape.BACKWARD)


class Sampler:
    """Takes samples, and writes everything at intervals."""

    def __init__(self, timeline: Timeline, write: Callable[[], None]) -> None:
        self._timeline = timeline
        self._write = write
        self._numbers: dict[tuple[CodeType, int, str, bool, Calls], int] = {}
        """Code, line, innermost function of a library, whether in a hook, and calls of each place,
        from 0 on."""
        self.samples: list[tuple[float, int, int, int]] = []
        """Time, phase, the phase before it and place of each sample."""
        self.threads = ScriptThreads(timeline.main)
        self.memory: list[tuple[float, int, float, float, float | None, float]] = []
        self._at_first = held() or 0.0
        self.grown = 0.0
        """Largest growth of the process before the training, in MiB."""
        self._over, self._ended = threading.Event(), threading.Event()
        self.device_memory: Callable[[], float] = lambda: 0.0
        self.workers_free: Callable[[], float] = lambda: 0.0
        self.trains: Callable[[], bool] = lambda: bool(timeline.done)
        """Whether the training has begun; asked until it has."""
        self._training = False
        self._every = EVERY_SECONDS
        self._collections: list[tuple[Copied, float, int, float]] = []
        """Stack, seconds, the phase before it and the end of each that no sample counts yet."""
        timeline.collected = self._collected

    def start(self) -> None:
        """Start to sample."""
        # Unknown to threading: scripts count its threads, and wait for all of them.
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """Stop; a thread that is alive when Python exits may crash it."""
        self._over.set()
        self._ended.wait(STOP_SECONDS)

    def places(self) -> tuple[HotLine, ...]:
        """The sampled places, by the numbers in ``samples``."""
        in_a_pass = {place for _, phase, _, place in self.samples if phase in PASSES}
        return tuple(
            HotLine(
                phase="",
                samples=0,
                file=places.short(code.co_filename),
                line=line,
                function=code.co_qualname if sys.version_info >= (3, 11) else code.co_name,
                text=user_calls.text(code, line),
                inner=inner,
                hook=hook,
                calls=tuple(user_calls.frame(*call) for call in calls),
                within=tuple(block for call in calls for block in user_calls.blocks(*call)),
                origins=user_calls.origins(calls) if number in in_a_pass else (),
            )
            for number, (code, line, inner, hook, calls) in enumerate(list(self._numbers))
        )

    def ways(self) -> Iterator[Calls]:
        """The user's calls of each sampled place."""
        for *_, calls in list(self._numbers):
            yield calls

    def _run(self) -> None:
        try:
            self._sample()
        finally:
            self._ended.set()

    def _sample(self) -> None:
        looks, written, pause = 0, 0.0, WRITE_AFTER_SECONDS
        while not self._over.wait(self._every - stacks.SPREAD_SECONDS / 2):
            if not self._training and self.trains():
                # However long it took to begin, a short training is met often, too.
                self._training, looks = True, 0
            looks += 1
            written += self._every
            self._every = EVERY_SECONDS if looks < FIRST_LOOKS else LATER_SECONDS
            self._look()
            if looks % (WEIGH_EVERY if looks <= WEIGHED_OFTEN else WEIGH_LATER) == 0:
                self._weigh()
            for rows in (self.samples, self.memory):
                if len(rows) > MOST_SAMPLES:
                    del rows[: MOST_SAMPLES // 2]
            head = self._timeline.head
            asked = head[tape.ASKED]
            if written > pause or asked != head[tape.WRITTEN]:
                # What is written down may change meanwhile; the next time is another chance.
                with suppress(Exception):
                    self._write()
                head[tape.WRITTEN] = asked
                # Until it trains, what is told of a rank that dies is what was written.
                written, pause = 0.0, min(60.0, 2 * pause) if self._timeline.done else pause

    def _collected(self, frame: FrameType, seconds: float) -> None:
        """A collection of garbage keeps the interpreter: it gets the samples that it prevents."""
        timeline = self._timeline
        if timeline.busy != timeline.main:
            return
        self._collections.append((stacks.copied(frame), seconds, timeline.came, timeline.last))

    def _count_collections(self) -> None:
        while self._collections:
            frame, seconds, came, now = self._collections.pop()
            user = places.caller(frame)
            # Of functions that are counted, `gc.collect` alone collects so long.
            inner = COLLECT if counts(frame.f_code) else ""
            number = self._number(frame, user, inner, hook=False) if user is not None else None
            if number is not None:
                samples = round(seconds / self._every)
                self.samples += [(now, tape.GC, came, number)] * samples

    def _look(self) -> None:
        self._count_collections()
        stacks.at_random()
        timeline = self._timeline
        if timeline.busy != timeline.main:
            return
        met: list[Any] = []
        reads = partial(met.extend, map(getattr, repeat(timeline), ("phase", "came", "last")))
        most = MOST_THREADS if self._training else 0
        frames = stacks.of_threads(timeline.main, most, reads)
        phase, came, now = met
        self.threads.look(frames)
        frame = frames.get(timeline.main)
        user = places.caller(frame)
        if frame is None or user is None:
            return
        hook = phase == tape.REST and tape.BACKWARD in timeline.open
        if hook and not hooks.of_tensor(user):
            # It waited for the interpreter until the hook had ended.
            return
        hook = hook or (phase in PASSES and hooks.of_module(user))
        number = self._number(frame, user, _library(frame, user), hook=hook)
        if number is not None:
            self.samples.append((now, phase, came, number))

    def _number(self, frame: Copied, user: AnyFrame, inner: str, *, hook: bool) -> int | None:
        """The number of a place; None: there are too many."""
        key = (user.f_code, user.f_lineno, inner, hook, user_calls.calls(user))
        if key not in self._numbers and len(self._numbers) < MOST_PLACES:
            self._numbers[key] = len(self._numbers)
        return self._numbers.get(key)

    def _weigh(self) -> None:
        timeline = self._timeline
        weight = held() or 0.0
        device, free = self.device_memory(), malloc_free()
        theirs = self.workers_free()
        self.memory.append((timeline.last, timeline.done, weight, device, free, theirs))
        self.threads.weigh()
        if not self._training:
            self.grown = max(self.grown, weight - self._at_first)


def _short(file: str) -> str:
    """A library's file with its folder, which distinguishes the packages of an ``__init__.py``."""
    return "/".join(Path(file).parts[-2:])


def _library(frame: Copied, user: AnyFrame) -> str:
    """The innermost function outside of the recorder; empty: the user's own."""
    inner: Copied | None = frame
    while inner is not None and "ddoctor" in inner.f_code.co_filename and inner is not user:
        inner = inner.f_back
    code = (inner or user).f_code
    return "" if code is user.f_code else f"{_short(code.co_filename)}:{code.co_name}"
