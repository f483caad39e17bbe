"""A rank's recording: one file of fixed size, mapped into memory.

Everything written is in the file at once, even if the process is killed right after. The file holds
a head (the rank's state, and the step at which to stop), a ring of steps, a ring of collectives
(the moments at which this rank had to wait for other ranks), and a ring of the ends of all steps,
also of those that are counted only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

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

OPERATIONS: Final = (
    "DDP's gradient reduction",
    "DDP's buffer broadcast",
    "wait",
    "all_reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "monitored_barrier",
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "send",
    "recv",
    # FSDP2's, since torch 2.13.
    "all_gather_single",
    "reduce_scatter_single",
    "isend",
    "irecv",
)
"""The watched collectives, by their numbers; after the first three, functions of torch."""
DDP_REDUCE, DDP_BUFFERS, WAIT, FIRST_FUNCTION = range(4)

HEAD_CELLS = 16
(STOP_AT, DONE, PHASE, SINCE, MEETINGS, OPERATION, CALLS, LEAVING, WORLD, ERROR, ASKED, WRITTEN) = (
    range(12)
)
"""ERROR is the errno of the last file that could not be written; 0: it was. ASKED is raised to have
the facts written, and WRITTEN follows it."""
GROUP, GROUP_SIZE = WRITTEN + 1, WRITTEN + 2
"""Of the collective of OPERATION."""

ROWS = 10_000
COUNTS = (
    "samples",
    "elements",
    "forwards",
    "backwards",
    "synced_backwards",
    "inspected",
    "find_unused",
    "buffers",
    "empty_cache",
    "collected",
    "on_device",
    "optimizer_steps",
    "checkpointed",
    "pageable_bytes",
    "pinned_bytes",
    "idle_forwards",
    "idle_backwards",
    "profiled",
)
"""The counts of each step in addition to the phases."""
COUNT: Final = {name: number for number, name in enumerate(COUNTS)}
PHASES_FROM, COUNTS_FROM = 4, 4 + len(PHASES)
"""Cells of a row: number, begin, end, CPU seconds, phases, counts."""
ROW = struct.Struct(f"={COUNTS_FROM + len(COUNTS)}d")

MEETING_ROWS = 100_000
MEETING = struct.Struct("=5d")
"""Step, arrival, seconds, group, operation."""
Meeting: TypeAlias = tuple[float, float, float, float]
"""The same without the step."""

HEAD_BYTES = HEAD_CELLS * 8
MEETINGS_AT = HEAD_BYTES + ROWS * ROW.size

ENDS_AT = MEETINGS_AT + MEETING_ROWS * MEETING.size
END_ROWS = 65_536
SIZE = ENDS_AT + END_ROWS * 8


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
    meetings: tuple[Meeting, ...] = ()


class Tape:
    """The file of one rank, open for both sides.

    ``path``: None is a tape in memory, on which nothing is recorded.
    ``for_good``: as long as the process lives, without a file descriptor that its script could see,
    close, or take for its own.
    """

    def __init__(self, path: Path | None, *, create: bool = False, for_good: bool = False) -> None:
        self.memory: Any = mmap.mmap(-1, SIZE) if path is None else _file(path, create, for_good)
        self.head: Any = memoryview(self.memory)[:HEAD_BYTES].cast("d")
        self.ends: Any = memoryview(self.memory)[ENDS_AT:SIZE].cast("d")
        """The end of each step, by its number modulo END_ROWS."""

    def rows(self, first: int = 0) -> Iterator[StepRow]:
        """The recorded steps from ``first`` on that are still in the ring, in order, with their
        collectives."""
        done, met = int(self.head[DONE]), int(self.head[MEETINGS])
        meetings: dict[int, list[Meeting]] = defaultdict(list)
        oldest = met
        while oldest > max(0, met - MEETING_ROWS) and self._meeting(oldest - 1)[0] >= first:
            oldest -= 1
        for one in range(oldest, met):
            step, *meeting = self._meeting(one)
            meetings[int(step)].append((meeting[0], meeting[1], meeting[2], meeting[3]))
        for number in range(max(first, done - ROWS), done):
            cells = ROW.unpack_from(self.memory, HEAD_BYTES + number % ROWS * ROW.size)
            if cells[0] == number:
                yield StepRow(
                    number=number,
                    begin=cells[1],
                    end=cells[2],
                    cpu=cells[3],
                    phases=cells[PHASES_FROM:COUNTS_FROM],
                    counts=cells[COUNTS_FROM:],
                    meetings=tuple(meetings[number]),
                )

    def last_seconds(self, most: int) -> list[float]:
        """Seconds of the last steps, also of those that are only counted, oldest first."""
        done = int(self.head[DONE])
        first = max(0, done - 1 - min(most, END_ROWS // 2))
        ends = [float(self.ends[number % END_ROWS]) for number in range(first, done)]
        return [end - begin for begin, end in pairwise(ends)]

    def operations(self, most: int) -> list[int]:
        """The last collectives that have ended, by their numbers, oldest first."""
        met = int(self.head[MEETINGS])
        return [int(self._meeting(one)[-1]) for one in range(max(0, met - most), met)]

    def _meeting(self, number: int) -> tuple[float, ...]:
        at = MEETINGS_AT + number % MEETING_ROWS * MEETING.size
        return MEETING.unpack_from(self.memory, at)

    def close(self) -> None:
        """Close the file; its content stays."""
        self.head.release()
        self.ends.release()
        self.memory.close()


def _file(path: Path, create: bool, for_good: bool) -> memoryview | mmap.mmap:
    file = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        if create:
            # On a disk that is full later, to write into a hole would end the script (SIGBUS).
            os.posix_fallocate(file, 0, SIZE)
        return _mapped(file) if for_good else mmap.mmap(file, SIZE)
    finally:
        os.close(file)


def _mapped(file: int) -> memoryview:
    """The file's memory; `mmap.mmap` would keep a descriptor open (before Python 3.13)."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    place = library.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return memoryview((ctypes.c_char * SIZE).from_address(place)).cast("B")
