"""The user's code as a process runs it: the text of a line, and the blocks around it."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

import ddoctor
from ddoctor import blocks, loop_exits, origins
from ddoctor.evidence.frames import Block, Frame, Origin
from ddoctor.evidence.opening import without_waiting
from ddoctor.loop_exits import Loop

# The kernel counts a process's start time from the boot, whose time it has in whole seconds.
COARSE_SECONDS = 2.0
MOST_BYTES = 16 * 2**20
"""Bytes of a source file."""
# A handle that a line waits for, and how far before it that was made.
HANDLE, NEAR_LINES = re.compile(r"(\w+)\.wait\("), 30
CALL = re.compile(r"(?:i(?=send|recv))?(\w+)\(")
BEGINS = re.compile(rf"\b{CALL.pattern}.*\)\.wait\(")
# Code that is not the user's.
OWN = f"{Path(ddoctor.__file__).parent}{os.sep}"
"""`ddoctor run` is on the stacks of the ranks that it starts, from a checkout as well."""
LIBRARY = re.compile(r"^<|/(site|dist)-packages/|/lib(64)?/python\d+\.\d+/|\.zip/")


class Source:
    """Files as one process sees them: from its working folder, in its container."""

    def __init__(self, process: psutil.Process) -> None:
        self._root, self._folder, self._began = Path(f"/proc/{process.pid}/root"), Path("/"), 0.0
        with suppress(psutil.Error):
            self._folder = Path(process.cwd())
            self._began = process.create_time()
        self._lines = cache(self._read)
        self._nodes = cache(lambda file: blocks.parsed(self._lines(file)))
        # The same frames are sampled again and again.
        self._counters = cache(loop_exits.counters)
        self._origins = cache(lambda calls: origins.origins(calls, self._nodes))

    def path(self, file: str) -> Path:
        """Return the path at which ddoctor can read it."""
        # Two slashes at the front count as one, as in //.cache if HOME is /.
        return self._root / str(self._folder / file).lstrip("/")

    def frame(self, file: str, line: int, function: str) -> Frame:
        """Return a frame, with the line's text if it is the user's code."""
        of_user = LIBRARY.search(file) is None and not file.startswith(OWN)
        text = self.text(file, line) if of_user else ""
        return Frame(file=file, line=line, function=function, text=text, of_user=of_user)

    def text(self, file: str, line: int) -> str:
        """Return the line without its indentation; empty: not available."""
        lines = self._lines(file)
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def blocks(self, calls: Sequence[Frame]) -> tuple[Block, ...]:
        """Return the loops and branches around the user's frames, the innermost last."""
        return tuple(
            block
            for frame in calls
            for block in blocks.around(frame, self._nodes(frame.file), self._lines(frame.file))
        )

    def contexts(self, calls: Sequence[Frame]) -> tuple[Frame, ...]:
        """Return the ``with`` statements around the user's frames, the innermost last."""
        return tuple(
            self.frame(frame.file, line, frame.function)
            for frame in calls
            if frame.of_user
            for line in blocks.contexts(frame, self._nodes(frame.file))
        )

    def origins(self, calls: tuple[Frame, ...]) -> tuple[Origin, ...]:
        """Return the statements whose values these frames of the user read, directly or not."""
        return self._origins(calls)

    def takes_a_gradient(self, frame: Frame) -> bool:
        """Return whether the function of this frame takes one argument, as a hook of a tensor does.

        DDP's communication hooks take two, and belong to the pass.
        """
        called = self._function(frame)
        if called is None:
            return frame.function.endswith("<lambda>")
        given = [*called.args.posonlyargs, *called.args.args]
        own = given[:1] and given[0].arg in ("self", "cls")
        return len(given) - len(called.args.defaults) - bool(own) == 1

    def returns(self, frame: Frame) -> bool:
        """Return whether the function of this frame may return a value, or is not known."""
        called = self._function(frame)
        return called is None or any(
            isinstance(node, ast.Return) and not _is_none(node.value) for node in ast.walk(called)
        )

    def _function(self, frame: Frame) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        around = (
            node
            for node in self._nodes(frame.file)
            if isinstance(node, blocks.Function)
            and node.lineno <= frame.line <= (node.end_lineno or 0)
        )
        called = max(around, key=lambda node: node.lineno, default=None)
        own = called is not None and called.name == frame.bare
        return called if own else None

    def begun(self, frame: Frame) -> str:
        """Return the call of torch.distributed that this line of the user waits for, such as recv.

        It begins it itself, or its handle got its name in one of the lines before. Empty: not
        known.
        """
        if itself := BEGINS.search(frame.text):
            return itself[1]
        if (handle := HANDLE.search(frame.text)) is None:
            return ""
        begins = re.compile(rf"\b{re.escape(handle[1])}\s*=\s*(?:\w+\.)*{CALL.pattern}")
        before = self._lines(frame.file)[max(0, frame.line - NEAR_LINES) : frame.line]
        found = (begins.search(line) for line in reversed(before))
        return next((one[1] for one in found if one), "")

    def skip(self, calls: Sequence[Frame]) -> str:
        """Return the test of a counter by which a loop skips its body: ``if step < start:``.

        The loop is around one of the user's frames. The frame is at the loop's head, or at most
        at that test. Empty: there is no such test.
        """
        for frame in reversed(calls):
            loop = self._loop(frame)
            if loop is not None:
                for skip in _skips(loop.body, self._counters(loop)):
                    if frame.line <= (skip.end_lineno or 0):
                        return self.text(frame.file, skip.lineno)
        return ""

    def skipped_at(self, calls: Sequence[Frame]) -> Frame | None:
        """Return the last test before the line whose branch ends with ``continue``.

        Tests of counters are none: they hold for the same steps on all ranks.
        """
        for frame in reversed(calls):
            loop = self._loop(frame)
            for node in reversed(loop.body if loop is not None else ()):
                leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue)
                counted = loop is not None and node in [*_skips(loop.body, self._counters(loop))]
                if leaves and not counted and node.lineno < frame.line:
                    return self.frame(frame.file, node.lineno, frame.function)
        return None

    def _loop(self, frame: Frame) -> Loop | None:
        """Return the innermost loop around the frame, or at whose head it is."""
        around = (
            node
            for node in self._nodes(frame.file)
            if isinstance(node, Loop) and node.lineno <= frame.line <= (node.end_lineno or 0)
        )
        return max(around, key=lambda node: node.lineno, default=None)

    def _read(self, file: str) -> Sequence[str]:
        path = self.path(file)
        with (
            suppress(OSError, UnicodeDecodeError),
            open(path, "rb", opener=without_waiting) as found,
        ):
            about = os.fstat(found.fileno())
            # A file that changed after the start is not what runs, and a pipe is not ddoctor's.
            unchanged = about.st_mtime <= self._began + COARSE_SECONDS
            if stat.S_ISREG(about.st_mode) and unchanged and about.st_size <= MOST_BYTES:
                return found.read(MOST_BYTES).decode().splitlines()
        return ()


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _skips(body: Sequence[ast.stmt], counters: Collection[str]) -> Iterator[ast.If]:
    """Yield the branches, nested ones included, that `continue` while a counter is below or above
    something.
    """
    for node in body:
        if isinstance(node, ast.If):
            if isinstance(node.body[-1], ast.Continue) and loop_exits.counts(node.test, counters):
                yield node
            yield from _skips(node.body, counters)
