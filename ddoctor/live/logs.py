"""Reads from a log how the exited ranks ended, and their last messages.

The stacks of running ranks say more than their log.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ddoctor.analysis import printed_tracebacks
from ddoctor.errors import DoctorError
from ddoctor.evidence import redaction
from ddoctor.evidence.opening import without_waiting
from ddoctor.evidence.training import RankEnding
from ddoctor.live.source import LIBRARY

# Only the end of a log that grows for weeks.
MOST_BYTES = 32 * 2**20
MOST_LINES = 1_000_000
LONGEST = 4_000
"""Characters of a line."""
# torchrun (--tee) puts the role and the local rank before each line.
ROLE = re.compile(r"\[(?!rank\d)[a-z_]+(\d{1,9})\]:")
# torch puts the rank before an uncaught exception (torch/distributed, distributed_c10d),
# srun (--label) the task before each line.
NAMED = re.compile(r"\[rank(\d{1,9})\]: ?| *(\d{1,9}): ")
# torch/distributed/elastic/multiprocessing/errors: the table that torchrun prints at the end.
RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,9}) ")
EXIT = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,9}) \(pid: (\d{1,9})\)")


def last_words(
    paths: Sequence[Path], gone: Sequence[int], first: int, host: str
) -> tuple[RankEnding, ...]:
    """Return how the exited ranks of this host ended; ``first``: the lowest of them.

    Raises:
        DoctorError: a file cannot be read.
    """
    found: dict[int, RankEnding] = {}
    for path in paths:
        lines = _lines(path)
        nameless = gone[0] if len(gone) == 1 else None
        for rank, exception in (*_raised(lines, first, nameless), *_exits(lines)):
            known = found.get(rank) or RankEnding(
                rank=rank, host=host, pid=0, outcome="failed", steps=0
            )
            found[rank] = msgspec.structs.replace(known, **exception)
    return tuple(found[rank] for rank in sorted(found) if rank in gone)


def _lines(path: Path) -> Sequence[str]:
    try:
        with open(path, "rb", opener=without_waiting) as file:
            before = 0
            if file.seekable():
                before = max(0, os.fstat(file.fileno()).st_size - MOST_BYTES)
                file.seek(before)
            text = file.read(MOST_BYTES)
            if not text and not file.seekable():
                raise OSError(errno.ENODATA, "no process writes to it")
            lines = text.decode(errors="replace").splitlines()
            # The first is the rest of a line, or of a key.
            return [_cut(line) for line in lines[bool(before) :][-MOST_LINES:]]
    except OSError as error:
        raise DoctorError(f"--log: {path} cannot be read: {error.strerror}") from None


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else redaction.beginning(line, LONGEST)


def _raised(
    lines: Sequence[str], first: int, nameless: int | None
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield each rank's exceptions and where it raised them; the last one ended the rank.

    ``nameless``: the rank of lines without a rank; None: it is not known.
    """
    each: dict[int, list[str]] = {}
    for line in lines:
        rank, words = _said(line, first)
        rank = nameless if rank is None else rank
        if rank is not None:
            each.setdefault(rank, []).append(words)
    for rank, said in each.items():
        if (found := printed_tracebacks.last(said, _of_user)) is not None:
            yield rank, vars(found)


def _said(line: str, first: int) -> tuple[int | None, str]:
    """Return the rank, if the line names it, and the rest of the line."""
    rank = None
    if role := ROLE.match(line):
        rank, line = first + int(role[1]), line[role.end() :]
    if named := NAMED.match(line):
        rank, line = int(named[1] or named[2]), line[named.end() :]
    return rank, line


def _of_user(file: str) -> bool:
    return not LIBRARY.search(file)


def _exits(lines: Sequence[str]) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield exit codes and PIDs, as torchrun lists them."""
    rank = None
    for line in lines:
        if match := RANK.match(line):
            rank = int(match[1])
        elif (match := EXIT.match(line)) and rank is not None:
            code, pid = int(match[1]), int(match[2])
            yield (
                rank,
                {"exit_code": code, "pid": pid, "outcome": "killed" if code < 0 else "failed"},
            )
            rank = None
