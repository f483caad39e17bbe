"""The user's code, as a process runs it: the text of a line, and what it stands in."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from ddoctor.evidence.live import Block
from ddoctor.evidence.training import Frame

# The kernel tells when a process began counted from the boot, whose time it knows in seconds.
COARSE_SECONDS = 2.0
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Node = ast.If | ast.For | ast.AsyncFor | ast.While


class Source:
    """Files as one process sees them: in its own folder, and in its own container."""

    def __init__(self, process: psutil.Process) -> None:
        self._root, self._folder, self._began = Path(f"/proc/{process.pid}/root"), Path("/"), 0.0
        with suppress(psutil.Error):
            self._folder = Path(process.cwd())
            self._began = process.create_time()
        self._lines = cache(self._read)
        self._nodes = cache(self._parse)

    def text(self, file: str, line: int) -> str:
        """The line, without its indentation; empty: not to be had."""
        lines = self._lines(file)
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def blocks(self, calls: Sequence[Frame]) -> tuple[Block, ...]:
        """The loops and branches that the user's own frames stand in, the innermost last."""
        return tuple(block for frame in calls for block in self._blocks(frame))

    def _blocks(self, frame: Frame) -> Iterator[Block]:
        for node in self._nodes(frame.file):
            first, last = node.body[0].lineno, node.body[-1].end_lineno or 0
            if first <= frame.line <= last:
                yield Block(
                    file=frame.file,
                    function=frame.function,
                    loop=isinstance(node, LOOPS),
                    text=self.text(frame.file, node.lineno),
                    line=node.lineno,
                    end=node.end_lineno or last,
                )

    def _read(self, file: str) -> Sequence[str]:
        path = self._root / (self._folder / file).relative_to("/")
        with suppress(OSError, UnicodeDecodeError):
            # What was written since is not what runs.
            if path.stat().st_mtime <= self._began + COARSE_SECONDS:
                return path.read_text().splitlines()
        return ()

    def _parse(self, file: str) -> Sequence[Node]:
        """The loops and branches of a file; none, if it cannot be read."""
        with suppress(SyntaxError, ValueError, RecursionError):
            every = ast.walk(ast.parse("\n".join(self._lines(file))))
            return [node for node in every if isinstance(node, Node)]
        return ()
