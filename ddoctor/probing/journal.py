"""The journal of each rank of a probe: one line per step, so that a hang leaves evidence.

Every rank writes a separate file, because NCCL writes to standard output. The supervisor follows
the files: they hold the measurements, and show how far each rank got and which rank lags.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ddoctor.evidence import redaction

Outcome = Literal["", "completed", "skipped", "failed"]


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank."""

    time: float
    """Seconds of the host's monotonic clock, which all its processes share."""
    pid: int
    probe: str
    """Empty while the rank is starting."""
    doing: str
    """The step that the rank begins; written before anything that may block."""
    outcome: Outcome = ""
    reason: str = ""
    section: msgspec.Raw = msgspec.Raw(b"null")
    """The result of the probe; one rank writes it for all."""


class Journal:
    """Writes the journal of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(_path(folder, rank), flags, 0o600)
        self._pid = os.getpid()
        self.probe = ""

    def write(
        self, doing: str, *, outcome: Outcome = "", reason: str = "", section: object = None
    ) -> None:
        """Write one line; when this returns, the line is in the file."""
        line = JournalLine(
            time=time.monotonic(),
            pid=self._pid,
            probe=self.probe,
            doing=doing,
            outcome=outcome,
            reason=reason,
            section=msgspec.Raw(redaction.encoded(redaction.redact(section))),
        )
        text = redaction.encoded(redaction.redact(line)) + b"\n"
        if os.write(self._file, text) < len(text):
            # The rest would follow in the middle of the next line.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Follower:
    """Reads the journal of one rank as it grows."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _path(folder, rank)
        self._read = 0

    def new_lines(self) -> Iterator[JournalLine]:
        """The complete lines since the last call."""
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
