"""A rank's recording: one file of fixed size, mapped into memory.

Everything written is in the file at once, even if the process is killed right after. The file holds
a head (the rank's state, and the step at which to stop), a ring of steps, and a ring of collectives
(the moments at which this rank had to wait for other ranks).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

PHASES: Final = (
    "rest",
    "loader",
    "to-device",
    "forward",
    "backward",
    "optimizer",
    "collective",
    "checkpoint",
    "evaluation",
    "gc",
)
REST, LOADER, TO_DEVICE, FORWARD, BACKWARD, OPTIMIZER, COLLECTIVE, CHECKPOINT, EVALUATION, GC = (
    range(len(PHASES))
)

HEAD_CELLS = 16
PID, STOP_AT, DONE, PHASE, SINCE, MEETINGS, OPERATION, CALLS, BEGAN, LEAVING, WORLD = range(11)

ROWS = 10_000
COUNTS = (
    "samples",
    "elements",
    "forwards",
    "backwards",
    "synced",
    "inspected",
    "find_unused",
    "buffers",
    "empty_cache",
    "collected",
    "on_device",
    "optimizer_steps",
    "checkpointed",
)
"""The counts of each step in addition to the phases."""
COUNT: Final = {name: number for number, name in enumerate(COUNTS)}
ROW_CELLS = 5 + len(PHASES) + len(COUNTS)
"""Number, begin, end, CPU seconds, collectives until its end; then phases and counts."""
ROW = struct.Struct(f"={ROW_CELLS}d")

MEETING_ROWS = 100_000
MEETING = struct.Struct("=5d")
"""Step, arrival, seconds, group, operation."""

HEAD_BYTES = HEAD_CELLS * 8
MEETINGS_AT = HEAD_BYTES + ROWS * ROW.size
SIZE = MEETINGS_AT + MEETING_ROWS * MEETING.size


class StepRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One step."""

    number: int
    begin: float
    """Seconds of the machine's monotonic clock."""
    end: float
    cpu: float
    phases: tuple[float, ...]
    """In the order of PHASES."""
    counts: tuple[float, ...]
    """In the order of COUNTS."""
    meetings: tuple[tuple[float, float, float, float], ...] = ()
    """Arrival, seconds, group, operation."""


class Tape:
    """The file of one rank, open for both sides."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        file = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(file, SIZE)
            self.memory = mmap.mmap(file, SIZE)
        finally:
            os.close(file)
        self.head: Any = memoryview(self.memory)[:HEAD_BYTES].cast("d")

    def rows(self) -> Iterator[StepRow]:
        """The recorded steps that are still in the ring, in order, with their collectives."""
        done = int(self.head[DONE])
        met_in_all = int(self.head[MEETINGS])
        before: float | None = None
        for number in range(max(0, done - ROWS), done):
            cells = ROW.unpack_from(self.memory, HEAD_BYTES + number % ROWS * ROW.size)
            if cells[0] != number:
                continue
            until = cells[4]
            # A ring that has gone round holds no meetings of that step any more.
            first = until if before is None and number else before or 0
            kept = range(max(int(first), met_in_all - MEETING_ROWS), int(until))
            met = (
                MEETING.unpack_from(self.memory, MEETINGS_AT + one % MEETING_ROWS * MEETING.size)
                for one in kept
            )
            # Those of steps before it that were not recorded are none of its own.
            meetings = (one for one in met if one[0] == number)
            before = until
            yield StepRow(
                number=number,
                begin=cells[1],
                end=cells[2],
                cpu=cells[3],
                phases=cells[5 : 5 + len(PHASES)],
                counts=cells[5 + len(PHASES) :],
                meetings=tuple(one[1:] for one in meetings),
            )

    def close(self) -> None:
        """Close the file; its content stays."""
        self.head.release()
        self.memory.close()
