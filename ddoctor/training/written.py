"""What the process of a script writes: the tape of its steps, and files in its own folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter

import msgspec

from ddoctor.proc.folder import TAG, TemporaryFolder
from ddoctor.recorder import recorded
from ddoctor.recorder.recorded import Grown
from ddoctor.recorder.script import Ending
from ddoctor.recorder.tape import (
    ASKED,
    COLLECTIVE,
    DDP_REDUCE,
    DONE,
    ERROR,
    LEAVING,
    OPERATION,
    OPERATIONS,
    PHASE,
    PHASES,
    WRITTEN,
    Tape,
)

RECENT = 32
"""The number of a rank's last collectives that show whether the ranks called the same."""
# A rank writes its facts between two steps of its sampler.
FACTS_SECONDS = 2.0
MOST_OF_CRASH = 2**20
"""Bytes."""


class Written:
    """The tape and the files; a tape in memory and no files, where neither can be written."""

    def __init__(self) -> None:
        self._folder: TemporaryFolder | None = None
        self._crash: int | None = None
        """What holds the stack at a crash, in memory: it has paths and names, unredacted."""
        self._why = ""
        try:
            self._folder = TemporaryFolder()
            self.tape = Tape(self._folder.path / recorded.TAPE, create=True)
            self._crash = _memory(self._folder.path / recorded.CRASH)
        except OSError as error:
            where = self._folder.path.parent if self._folder else Path(gettempdir())
            self._why = _unwritable(where, error.strerror or str(error))
            self.tape = Tape(None)
        # Without a folder, it has no files that could be read.
        self.path = self._folder.path if self._folder else Path(os.devnull)

    @property
    def tag(self) -> dict[str, str]:
        """The variable by which the processes of the script are found."""
        return {TAG: str(self.path) if self._folder else f"none of {os.getpid()}"}

    @property
    def argument(self) -> str:
        """The folder for the recorder; empty: it does not record."""
        return "" if self._why else str(self.path)

    @property
    def why_not(self) -> str:
        """Why nothing is recorded, or no more; empty: it is."""
        error = int(self.tape.head[ERROR])
        return _unwritable(self.path.parent, os.strerror(error)) if error else self._why

    @property
    def done(self) -> int:
        """Number of finished steps."""
        return int(self.tape.head[DONE])

    @property
    def leaving(self) -> bool:
        """Whether the script has reached the step at which to stop."""
        return bool(self.tape.head[LEAVING])

    @property
    def ended(self) -> bool:
        """Whether the script has written how it ended."""
        return (self.path / recorded.ENDING).exists()

    @property
    def ending(self) -> Ending | None:
        """How the script ended; None: it has not written that."""
        return recorded.read(self.path, recorded.ENDING, Ending)

    @property
    def crash(self) -> str:
        """The stack at a crash, from faulthandler; empty: there was none."""
        if self._crash is None:
            return ""
        return os.pread(self._crash, MOST_OF_CRASH, 0).decode(errors="replace")

    @property
    def facts(self) -> msgspec.Raw:
        """The facts about the run, as JSON."""
        return recorded.read(self.path, recorded.FACTS, msgspec.Raw) or msgspec.Raw(b"null")

    @property
    def grown(self) -> Grown | None:
        """What grew its batches, if it was asked to."""
        return recorded.read(self.path, recorded.GROWN, Grown)

    @property
    def doing(self) -> str:
        """The phase, or the operation of a collective, that it is in."""
        phase = int(self.tape.head[PHASE])
        if phase == COLLECTIVE:
            return OPERATIONS[int(self.tape.head[OPERATION])]
        return PHASES[phase]

    def recent(self, raised_in: str) -> tuple[str, ...]:
        """The collectives that it called and left; ``raised_in``: one that raised is not left."""
        # DDP's reduction is not called from Python.
        ended = [one for one in self.tape.operations(RECENT) if one != DDP_REDUCE]
        names = tuple(OPERATIONS[one] for one in ended)
        return names[:-1] if raised_in and raised_in in names[-1:] else names

    def ask_for_facts(self, over: Callable[[], bool]) -> None:
        """Have the process write its facts now; ``over``: whether it has ended."""
        head = self.tape.head
        head[ASKED] = asked = head[ASKED] + 1
        until = perf_counter() + FACTS_SECONDS
        while head[WRITTEN] < asked and perf_counter() < until and not over():
            time.sleep(FACTS_SECONDS / 40)

    def close(self) -> None:
        """Remove all of it."""
        self.tape.close()
        if self._crash is not None:
            os.close(self._crash)
            self._crash = None
        if self._folder is not None:
            self._folder.cleanup()


def _memory(named: Path) -> int | None:
    """A file in memory, whose path another process finds in this one; None: there is none."""
    with suppress(OSError):
        file = os.memfd_create(named.name)
        named.write_text(f"/proc/{os.getpid()}/fd/{file}")
        return file
    return None


def _unwritable(folder: Path, why: str) -> str:
    return f"cannot write to {folder}: {why}"
