"""The time of the GPU's stream, from events that are read once they are over, never waited for.

The host runs ahead of the GPU, so its own clock shows when work was queued and not how long it
took. An event at each change of phase shows the stream's time. Work of the host that the GPU hides
costs nothing there; a wait of the GPU appears in the phase that caused it. A stream on which all
work is over at the end of a forward or backward pass had to wait for the host's next launch.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddoctor.recorder.tape import (
    BACKWARD,
    COLLECTIVE,
    COUNT,
    COUNTS_FROM,
    FORWARD,
    HEAD_BYTES,
    MEETING,
    MEETING_ROWS,
    MEETINGS_AT,
    PHASES,
    PHASES_FROM,
    ROW,
    ROWS,
)

# Beyond it a phase keeps the time of those within it: a step of a thousand collectives, say.
MOST_MARKS = 512
# Steps whose events are not over yet; the GPU is never further behind.
MOST_PENDING = 64
RESOLVED = COUNTS_FROM + COUNT["on_device"]
IDLE = {
    FORWARD: COUNTS_FROM + COUNT["idle_forwards"],
    BACKWARD: COUNTS_FROM + COUNT["idle_backwards"],
}


@dataclass
class _Step:
    number: int
    marks: list[tuple[Any, int]] = field(default_factory=list)
    """An event, and the phase that begins with it."""
    meetings: list[tuple[int, int, int]] = field(default_factory=list)
    """Number of the collective, and the marks at which it began and ended."""
    idle: list[int] = field(default_factory=list)
    """The phases at whose ends the stream had nothing left to do."""


class DeviceClock:
    """Marks each change of phase on the stream, and corrects the tape after the GPU."""

    def __init__(
        self,
        memory: Any,
        new_event: Callable[[], Any],
        capturing: Callable[[], bool],
        idle: Callable[[], bool],
    ) -> None:
        self._memory = memory
        self._new_event = new_event
        self._capturing = capturing
        self._idle = idle
        self._free: list[Any] = []
        self._step = _Step(-1)
        self._pending: deque[_Step] = deque()

    def begin(self, number: int, phase: int) -> None:
        """The first step that is timed on the stream."""
        self._step = _Step(number)
        self.mark(phase)

    def mark(self, phase: int) -> int:
        """Start a phase on the stream; returns the number of the mark."""
        marks = self._step.marks
        # A graph would take the event for a part of itself.
        if len(marks) < MOST_MARKS and not self._capturing():
            # A collective within a pass does not end it.
            ends = marks[-1][1] if marks and phase != COLLECTIVE else None
            if ends in IDLE and self._idle():
                self._step.idle.append(ends)
            event = self._free.pop() if self._free else self._new_event()
            event.record()
            marks.append((event, phase))
        return len(marks) - 1

    def meeting(self, number: int, began: int) -> None:
        """A collective on the tape, from a mark to the last one."""
        self._step.meetings.append((number, began, len(self._step.marks) - 1))

    def end_step(self, number: int, phase: int) -> None:
        """End the step on the host, and read the steps that have ended on the GPU."""
        step = self._step
        last = self.mark(phase)
        self._pending.append(step)
        self._step = _Step(number)
        # The mark that ends one step begins the next; its event is both's.
        if last >= 0:
            self._step.marks.append((step.marks[last][0], phase))
        # A question about another event would end the capture with an error.
        while self._pending and not self._capturing() and self._over(self._pending[0]):
            self._resolve(self._pending.popleft())
        if len(self._pending) > MOST_PENDING:
            self._pending.popleft()

    def _over(self, step: _Step) -> bool:
        return len(step.marks) < 2 or bool(step.marks[-1][0].query())

    def _resolve(self, step: _Step) -> None:
        marks = step.marks
        if len(marks) < 2:
            return
        first = marks[0][0]
        times = [0.0, *(first.elapsed_time(event) / 1e3 for event, _ in marks[1:])]
        seconds = array("d", [0.0] * len(PHASES))
        for place, (_, phase) in enumerate(marks[:-1]):
            seconds[phase] += times[place + 1] - times[place]
        at = HEAD_BYTES + step.number % ROWS * ROW.size
        row = self._memory[at : at + ROW.size].cast("d")
        row[2] = row[1] + times[-1]
        row[PHASES_FROM:COUNTS_FROM] = seconds
        row[RESOLVED] = 1.0
        for phase in step.idle:
            row[IDLE[phase]] += 1
        for number, began, ended in step.meetings:
            place = MEETINGS_AT + number % MEETING_ROWS * MEETING.size
            one = self._memory[place : place + MEETING.size].cast("d")
            one[2] = times[ended] - times[began]
        # The last one is still the next step's first.
        self._free += [event for event, _ in marks[:-1]]
