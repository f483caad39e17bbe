"""What the ranks of a probe write while they work, line by line, so that a hang is evidence too.

Every rank has a file of its own: standard output belongs to NCCL. The launcher follows the files
and reads from them what was measured, how far each rank has come, and which one fell behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank."""

    time: float
    """Seconds of the machine's monotonic clock, which all its processes share."""
    pid: int
    probe: str
    """Empty while the rank is starting."""
    doing: str
    """What the rank begins with now; it writes before it may have to wait."""
    outcome: Literal["", "completed", "skipped", "failed"] = ""
    reason: str = ""
    section: msgspec.Raw = msgspec.Raw(b"null")
    """What the probe measured; one rank writes it for all."""


class Journal:
    """The file of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(_path(folder, rank), flags, 0o600)
        self._pid = os.getpid()
        self.probe = ""

    def write(
        self,
        doing: str,
        *,
        outcome: Literal["", "completed", "skipped", "failed"] = "",
        reason: str = "",
        section: object = None,
    ) -> None:
        """Write one line; it is in the file when this returns."""
        line = JournalLine(
            time=time.monotonic(),
            pid=self._pid,
            probe=self.probe,
            doing=doing,
            outcome=outcome,
            reason=reason,
            section=msgspec.Raw(msgspec.json.encode(section)),
        )
        os.write(self._file, msgspec.json.encode(line) + b"\n")


class Follower:
    """Reads on in the file of one rank as it grows."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _path(folder, rank)
        self._read = 0

    def new_lines(self) -> Iterator[JournalLine]:
        """The lines that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._read += len(whole) + len(newline)
        for line in whole.splitlines():
            yield _decoder.decode(line)


_decoder = msgspec.json.Decoder(JournalLine)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.jsonl"
