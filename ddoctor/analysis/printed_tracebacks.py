"""Exceptions and stacks, read from tracebacks that Python has printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ddoctor.evidence import redaction
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import TRACEBACK

# Characters of a message, which may have many lines.
LONGEST = 4_000
MOST_FRAMES = 200
FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d{1,9}), in (?P<function>.+)$')
# Python marks the place within the line.
MARKS = re.compile(r"^[\s~^]*$")
RAISED = re.compile(r"^(?P<exception>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
# No exception's message contains these: they begin a line of another writer.
ANOTHER = re.compile(r"^\[[EWIF]\d{4} |^[EWIF]\d{4} ")


@dataclass(frozen=True, kw_only=True)
class Printed:
    """One exception, as its traceback shows it."""

    exception: str
    """Its class, without the module."""
    message: str
    stack: tuple[Frame, ...]


def last(lines: Sequence[str], of_user: Callable[[str], bool]) -> Printed | None:
    """Return the last exception of the lines; None: there is none, or it is cut off.

    ``of_user``: whether a file is the user's code.
    """
    begins = [number for number, line in enumerate(lines) if line == TRACEBACK]
    if not begins:
        return None
    stack: list[Frame] = []
    rest = iter(lines[begins[-1] + 1 :])
    for line in rest:
        if frame := FRAME.match(line):
            stack.append(_frame(frame, of_user))
        elif line.startswith("    ") and stack:
            if not MARKS.match(line) and not stack[-1].text:
                stack[-1] = replace(stack[-1], text=line.strip())
        elif raised := RAISED.match(line):
            message = [raised["message"] or ""]
            for more in rest:
                if ANOTHER.match(more) or not more:
                    break
                message.append(more)
            return Printed(
                exception=raised["exception"].rpartition(".")[2],
                message=redaction.beginning("\n".join(message), LONGEST),
                stack=tuple(stack[-MOST_FRAMES:]),
            )
        else:
            return None
    return None


def _frame(match: re.Match[str], of_user: Callable[[str], bool]) -> Frame:
    file = match["file"]
    return Frame(
        file=file, line=int(match["line"]), function=match["function"], of_user=of_user(file)
    )
