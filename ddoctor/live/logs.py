"""Reads from a log how the exited ranks ended, and their last messages.

The stacks of running ranks say more than their log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.training import Frame, RankEnding
from ddoctor.live.source import LIBRARY

# Only the end of a log that grows for weeks.
MOST_BYTES = 32 * 2**20
MOST_LINES = 1_000_000
# Characters of a line, and of a message, which may have many lines.
LONGEST = 4_000
MOST_FRAMES = 200
# torchrun (--tee) puts the role and the local rank before each line.
ROLE = re.compile(r"\[(?!rank\d)[a-z_]+(\d{1,9})\]:")
# torch puts the rank before an uncaught exception (torch/distributed, distributed_c10d),
# srun (--label) the task before each line.
NAMED = re.compile(r"\[rank(\d{1,9})\]: ?| *(\d{1,9}): ")
BEGINS = "Traceback (most recent call last):"
FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d{1,9}), in (?P<function>.+)$')
# Python marks the place within the line.
MARKS = re.compile(r"^[\s~^]*$")
RAISED = re.compile(r"^(?P<exception>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
# No exception's message contains these: they begin a line of another writer.
ANOTHER = re.compile(r"^\[[EWIF]\d{4} |^[EWIF]\d{4} ")
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
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_BYTES))
            lines = file.read(MOST_BYTES).decode(errors="replace").splitlines()
            return [line[:LONGEST] for line in lines[-MOST_LINES:]]
    except OSError as error:
        raise DoctorError(f"--log: {path} cannot be read: {error.strerror}") from None


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
        if (told := _exception(said)) is not None:
            yield rank, told


def _said(line: str, first: int) -> tuple[int | None, str]:
    """Return the rank, if the line names it, and the rest of the line."""
    rank = None
    if role := ROLE.match(line):
        rank, line = first + int(role[1]), line[role.end() :]
    if named := NAMED.match(line):
        rank, line = int(named[1] or named[2]), line[named.end() :]
    return rank, line


def _exception(said: Sequence[str]) -> dict[str, object] | None:
    begins = [number for number, line in enumerate(said) if line == BEGINS]
    if not begins:
        return None
    stack: list[Frame] = []
    rest = iter(said[begins[-1] + 1 :])
    for line in rest:
        if frame := FRAME.match(line):
            stack.append(_frame(frame))
        elif line.startswith("    ") and stack:
            if not MARKS.match(line) and not stack[-1].text:
                stack[-1] = msgspec.structs.replace(stack[-1], text=line.strip())
        elif raised := RAISED.match(line):
            message = [raised["message"] or ""]
            for more in rest:
                if ANOTHER.match(more) or not more:
                    break
                message.append(more)
            name = raised["exception"].rpartition(".")[2]
            told = "\n".join(message)[:LONGEST]
            return {"exception": name, "message": told, "stack": tuple(stack[-MOST_FRAMES:])}
        else:
            return None
    return None


def _frame(match: re.Match[str]) -> Frame:
    return Frame(
        file=match["file"],
        line=int(match["line"]),
        function=match["function"],
        of_user=not LIBRARY.search(match["file"]),
    )


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
