"""The user's calls that lead to what the recorder times, and the source around them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from types import CodeType
from typing import TypeAlias

from msgspec.structs import replace

from ddoctor import blocks as source
from ddoctor import kept_graphs
from ddoctor import origins as data_flow
from ddoctor.evidence import redaction
from ddoctor.evidence.frames import Block, Frame, Origin
from ddoctor.recorder import places, script
from ddoctor.recorder.stacks import AnyFrame

MOST_CALLS = 8
"""Frames between the script and its loop; more are below the loop, or a recursion."""
Calls: TypeAlias = tuple[tuple[CodeType, int], ...]


def calls(user: AnyFrame) -> Calls:
    """The user's outermost frames that lead to what the recorder times, innermost last."""
    found: list[tuple[CodeType, int]] = []
    timed = False
    frame: AnyFrame | None = user
    while frame is not None and frame.f_code.co_filename != script.__file__:
        file = frame.f_code.co_filename
        if places.of_user(file):
            if timed:
                # What was met before is inside of a timed call.
                found.clear()
            timed = False
            found.append((frame.f_code, frame.f_lineno or 0))
        elif places.of_ours(file):
            timed = True
        frame = frame.f_back
    return tuple(reversed(found[-MOST_CALLS:]))


def text(code: CodeType, line: int) -> str:
    """The line's source, stripped, without secrets."""
    return redaction.text(linecache.getline(code.co_filename, line).strip())


def frame(code: CodeType, line: int) -> Frame:
    """One of these calls, as evidence."""
    return Frame(
        file=places.short(code.co_filename),
        line=line,
        function=code.co_name,
        text=text(code, line),
        of_user=True,
    )


def blocks(code: CodeType, line: int) -> Iterator[Block]:
    """The loops and branches around a line, the innermost last."""
    file = code.co_filename
    for block in source.around(frame(code, line), _nodes(file), linecache.getlines(file)):
        yield replace(block, text=redaction.text(block.text))


def loops(code: CodeType, line: int) -> Iterator[ast.For]:
    """The ``for`` loops around a line that only the end of what they go through ends."""
    for node in _nodes(code.co_filename):
        if not isinstance(node, ast.For) or not node.lineno < line <= (node.end_lineno or 0):
            continue
        if not any(isinstance(one, ast.Break | ast.Return) for one in ast.walk(node)):
            yield node


def storing(ways: Iterable[Calls]) -> tuple[Frame, ...]:
    """Statements in these files of the user that store a loss with its graph."""
    files = dict.fromkeys(code.co_filename for calls in ways for code, _ in calls)
    return tuple(
        Frame(
            file=places.short(file),
            line=line,
            function=function,
            text=redaction.text(linecache.getline(file, line).strip()),
            of_user=True,
        )
        for file in files
        for line, function in kept_graphs.storing(linecache.getlines(file))[:MOST_CALLS]
    )


@cache
def origins(of: Calls) -> tuple[Origin, ...]:
    """The statements whose values the innermost of these calls reads, also indirectly."""
    # Nothing can be read by a shortened name.
    files = {places.short(code.co_filename): code.co_filename for code, _ in of}
    return data_flow.origins([frame(*call) for call in of], lambda file: _nodes(files[file]))


@cache
def _nodes(file: str) -> Sequence[source.Node]:
    return source.parsed(linecache.getlines(file))
