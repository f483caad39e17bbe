"""The main thread's time, divided among phases without gaps or double counting."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from ctypes import py_object, pythonapi
from math import inf
from threading import get_ident
from time import perf_counter, thread_time
from types import FrameType
from typing import TYPE_CHECKING, Any

from ddoctor.recorder.device_clock import DeviceClock
from ddoctor.recorder.swaps import Swaps
from ddoctor.recorder.tape import (
    COLLECTIVE,
    COUNTS,
    DONE,
    END_ROWS,
    HEAD_BYTES,
    MEETING,
    MEETING_ROWS,
    MEETINGS,
    MEETINGS_AT,
    PHASE,
    PHASES,
    REST,
    ROW,
    ROWS,
    SINCE,
    SIZE,
    Tape,
)

if TYPE_CHECKING:
    from ddoctor.recorder.loader_facts import Preparing

# An exception may leave phases open for good; no training nests them deeper than this.
DEEPEST = 40

# Recording a step takes 0.1 to 0.2 ms where the caches are cold. After the first ones, among which
# is the warm-up, so many in a row of EVERY are recorded where they are shorter than SHORT_SECONDS:
# the same on all ranks. A prime number: nothing that a script does every so many steps keeps pace.
FULL_STEPS, SHORT_SECONDS = 32, 0.02
IN_A_ROW, EVERY = 16, 127
# The number of no thread.
RESTING = -1
# So many in a row that are longer by this factor than the last recorded ones are recorded, too:
# what the run has become shows at once. There is one such row at most between two regular ones, so
# that a run that varies costs little more.
SLOWER, SLOWER_STEPS = 1.09, 5
# Arrays, whose numbers lie side by side: of a list, each would be fetched from elsewhere.
NO_SECONDS, NO_COUNTS = array("d", [0.0] * len(PHASES)), array("d", [0.0] * len(COUNTS))


class Timeline:
    """The phase entered last gets the time until it is left."""

    def __init__(self, tape: Tape) -> None:
        self.head: Any = tape.head
        self.memory: Any = memoryview(tape.memory)
        self.ends: Any = tape.ends
        self.main = get_ident()
        self.busy = self.main
        """The thread whose phases are recorded in this step; none while the recorder rests. Hooks
        of every step compare it directly, which costs less than a call of ``here``."""
        self.swaps = Swaps()
        """The hooks that are removed while the recorder rests."""
        self.phase = self.came = REST
        """Now, and the last of the step's own phases that was left."""
        self.seconds = NO_SECONDS[:]
        self.counts = NO_COUNTS[:]
        self.open: list[int] = []
        """The enclosing phase of each open phase; its length is the argument of ``unwind``."""
        self.done = 0
        self.autocast = ""
        """The data type of the last entry into autocast."""
        self.preparing: Preparing | None = None
        """Of the loader whose batch is on its way to the model; None: it has arrived."""
        self.feeding: list[Preparing] = []
        """Of all loaders that gave batches to the training."""
        self.meetings = 0
        self.batches = 0
        """Batches that DataLoaders gave to the training."""
        self.may_rest = True
        """Whether steps are counted without the hooks that are removed meanwhile."""
        self._begin = self.last = perf_counter()
        self._row_began: float | None = None
        self._row_first = 0
        self._row_edge = FULL_STEPS - IN_A_ROW
        """The step at which the next row begins, or this one ends."""
        self._long = inf
        """Seconds of a step that is longer than the last recorded ones."""
        self._longer = 0
        """Long steps in a row."""
        self._woken = False
        """Whether the last row was one of them: the next is a regular one."""
        self._cpu = thread_time()
        self.collected: Callable[[FrameType, float], None] = lambda *_: None
        """Called after a long collection of garbage: the frame that it interrupted, and seconds."""
        self.device: DeviceClock | None = None
        self.marking: DeviceClock | None = None
        """The device clock; none while the recorder rests."""
        os.register_at_fork(after_in_child=self._forget)

    def here(self) -> bool:
        """Whether this thread is the recorded one."""
        return get_ident() == self.main

    def enter(self, phase: int) -> float:
        """Enter a phase; returns the time."""
        now = perf_counter()
        self.seconds[self.phase] += now - self.last
        self.open.append(self.phase)
        self.last = self.head[SINCE] = now
        self.phase = phase
        self.head[PHASE] = phase
        if self.marking is not None:
            self.marked = self.marking.mark(phase)
        return now

    def leave(self) -> float:
        """Return to the enclosing phase; returns the time."""
        self.unwind(max(0, len(self.open) - 1))
        return self.last

    def unwind(self, depth: int) -> None:
        """Leave all phases beyond this depth, also after an exception."""
        if len(self.open) <= depth:
            return
        now = perf_counter()
        self.seconds[self.phase] += now - self.last
        if self.phase < COLLECTIVE:
            self.came = self.phase
        self.phase = self.open[depth]
        del self.open[depth:]
        self.last = self.head[SINCE] = now
        self.head[PHASE] = self.phase
        if self.marking is not None:
            self.marking.mark(self.phase)

    marked = -1
    """The last mark on the GPU's stream at which a phase began."""

    def use_device(self, clock: DeviceClock) -> None:
        """From the next step on, take times from a GPU's stream."""
        self.device = clock
        if self.busy == self.main:
            self._mark_steps()

    def meeting(
        self, arrival: float, seconds: float, group: float, operation: float, mark: int = -1
    ) -> None:
        """This rank had to wait for other ranks, from a mark on the stream on."""
        if self.marking is not None and mark >= 0:
            self.marking.meeting(self.meetings, mark)
        place = MEETINGS_AT + self.meetings % MEETING_ROWS * MEETING.size
        MEETING.pack_into(self.memory, place, self.done, arrival, seconds, group, operation)
        self.meetings += 1
        self.head[MEETINGS] = self.meetings

    def end_step(self) -> None:
        """Write the step, and begin the next."""
        if len(self.open) > DEEPEST:
            self.unwind(0)
        if self.busy != self.main:
            self.pass_step()
            return
        now = perf_counter()
        self.seconds[self.phase] += now - self.last
        self.last = now
        cpu = thread_time()
        ROW.pack_into(
            self.memory,
            HEAD_BYTES + self.done % ROWS * ROW.size,
            self.done,
            self._begin,
            now,
            cpu - self._cpu,
            *self.seconds,
            *self.counts,
        )
        self.ends[self.done % END_ROWS] = now
        self._begin, self._cpu = now, cpu
        # In place: to make containers may set off the garbage collection, which is timed, too.
        self.seconds[:] = NO_SECONDS
        self.counts[:] = NO_COUNTS
        self.done += 1
        if self.marking is not None:
            self.marking.end_step(self.done, self.phase)
        if self.done == self._row_edge:
            self._turn(now)
        self.head[DONE] = self.done

    def pass_step(self) -> int:
        """Count a step that is not recorded; wake up before the next row. Returns their number."""
        now, before = perf_counter(), self.ends[(self.done - 1) % END_ROWS]
        self.ends[self.done % END_ROWS] = now
        self.done += 1
        self.head[DONE] = self.done
        self._longer = self._longer + 1 if now - before > self._long else 0
        slower = self._longer == SLOWER_STEPS and not self._woken
        if self.done == self._row_edge or slower:
            self._woken = slower
            self.busy = self.main
            self.swaps.back()
            self._begin = self.last = perf_counter()
            self._cpu = thread_time()
            self.seconds[:] = NO_SECONDS
            self.counts[:] = NO_COUNTS
            self._mark_steps()
            self._turn(self.last)
        return self.done

    def _mark_steps(self) -> None:
        """Mark phases from here on, if there is a GPU."""
        self.marking = self.device
        if self.marking is not None:
            self.marking.begin(self.done, self.phase)

    def _turn(self, now: float) -> None:
        """Begin a row; or end it, and rest until the next if its steps were short.

        The number of a step decides where rows are, so that all ranks leave out the same. Where a
        run becomes slower, it does so on all of them.
        """
        self._longer = 0
        into = self.done % EVERY
        if self._row_began is None:
            self._row_began, self._row_first = now, self.done
            self._row_edge = self.done + IN_A_ROW
            return
        if into < IN_A_ROW:
            # A row of slow steps ends within one that all ranks record.
            self._row_edge = self.done - into + IN_A_ROW
            return
        typical = (now - self._row_began) / (self.done - self._row_first)
        short = self.may_rest and typical < SHORT_SECONDS
        self._long = SLOWER * typical
        self._row_began = None
        self._row_edge = self.done - into + EVERY
        if short:
            self.busy = RESTING
            self.marking = None
            self.swaps.out()

    def _forget(self) -> None:
        """In a forked child: write to its private memory, not into its parent's tape."""
        self.head = array("d", self.head)
        self.memory = bytearray(SIZE)
        self.ends = array("d", bytes(8 * END_ROWS))
        if self.device is not None:
            # To free an event of CUDA in a forked child ends the child, also when Python exits.
            pythonapi.Py_IncRef(py_object(self.device))
        self.device = self.marking = None
        self.main = self.busy = RESTING
