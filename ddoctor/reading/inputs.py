"""The files that a user names: folders are walked, and compressed files read as they are."""

from __future__ import annotations

import bz2
import errno
import gzip
import itertools
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from ddoctor.evidence.opening import without_waiting

STDIN = Path("-")
MOST_FILES = 20_000
"""Of all folders: a log of each rank, and a few more."""
GLANCE = 64 * 2**10
"""Bytes by which a file's kind is recognised."""
BLOCK = 2**20
"""Bytes that are read at once."""
LONGEST = 16 * 2**10
"""Bytes at the beginning of a line, and at its end, that are looked at."""
CARRIAGE_RETURN = b"\r"
UTF16 = (b"\xff\xfe", b"\xfe\xff")

DAMAGE = (EOFError, OSError, lzma.LZMAError, zlib.error)
"""What reading a compressed file may raise, if it is damaged or cut off."""


@dataclass(frozen=True, kw_only=True)
class NotRead:
    """A file that could not be read, or of which no kind is known, and the reason."""

    name: str
    why: str


class Content:
    """The decompressed content of an input, whose beginning can be looked at before it is read.

    A pipe cannot be read twice, so the input is opened once.
    """

    def __init__(self, rest: BinaryIO) -> None:
        self._rest = rest
        self._ahead = self.beginning = rest.read(GLANCE)

    def read(self, most: int) -> bytes:
        """The next ``most`` bytes; fewer at the end."""
        ahead, self._ahead = self._ahead[:most], self._ahead[most:]
        return ahead + self._rest.read(most - len(ahead))


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file, or standard input."""

    path: Path
    name: str
    """The name that reports show: the path below the folder that all files have in common."""

    @contextmanager
    def opened(self) -> Iterator[Content]:
        """Open it, decompressed.

        Raises:
            OSError: it cannot be read.
        """
        with self._file() as file, _decompressed(file) as content:
            yield Content(content)

    @contextmanager
    def _file(self) -> Iterator[BufferedReader]:
        if self.path == STDIN:
            if sys.stdin is None:
                raise OSError(errno.EBADF, "it is closed")
            yield cast(BufferedReader, sys.stdin.buffer)
            return
        with open(self.path, "rb", opener=without_waiting) as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode) and not file.peek(1):
                raise OSError(errno.ENODATA, "no process writes to it")
            yield file

    @property
    def written(self) -> float:
        """When it was written, in seconds since 1970; 0: not known."""
        return 0.0 if self.path == STDIN else self.path.stat().st_mtime


@contextmanager
def _decompressed(file: BufferedReader) -> Iterator[BinaryIO]:
    first = file.peek(6)[:6]
    if first.startswith(b"\x1f\x8b"):
        with gzip.open(file, "rb") as content:
            yield content  # type: ignore[misc]
    elif first.startswith(b"\xfd7zXZ\x00"):
        with lzma.open(file, "rb") as content:
            yield content  # type: ignore[misc]
    elif first.startswith(b"\x28\xb5\x2f\xfd"):
        from ddoctor.reading.zstd import Frames

        yield cast(BinaryIO, Frames(file))
    elif first.startswith(b"BZh"):
        with bz2.open(file, "rb") as content:
            yield content  # type: ignore[misc]
    else:
        yield file


def found(paths: Sequence[Path]) -> Iterator[Input | NotRead]:
    """The files of these paths, those within folders in the order of their names."""
    refused: list[NotRead] = []
    files = [*itertools.islice(_files(paths, refused.append), MOST_FILES + 1)]
    folders = [os.path.dirname(os.path.abspath(path)) for path in files if path != STDIN]
    root = os.path.commonpath(folders) if folders else os.curdir
    for path in files[:MOST_FILES]:
        yield Input(path=path, name="stdin" if path == STDIN else os.path.relpath(path, root))
    yield from refused
    if len(files) > MOST_FILES:
        yield NotRead(name="the others", why=f"there are more than {MOST_FILES} files")


def _files(paths: Sequence[Path], refuse: Callable[[NotRead], None]) -> Iterator[Path]:
    def denied(error: OSError) -> None:
        why = error.strerror or str(error)
        refuse(NotRead(name=os.path.relpath(error.filename), why=why))

    for path in paths:
        if path == STDIN or not path.is_dir():
            yield path
            continue
        for where, folders, names in os.walk(path, onerror=denied):
            folders.sort()
            for one in (Path(where, name) for name in sorted(names)):
                # A pipe that nobody named may never end.
                if one.exists() and not one.is_file():
                    refuse(NotRead(name=os.path.relpath(one), why="it is no regular file"))
                else:
                    yield one


def blocks(content: Content) -> Iterator[bytes]:
    """Whole lines of about a mebibyte together; of a longer line, its beginning and its end."""
    rest, head = b"", b""
    data = content.read(BLOCK)
    while data:
        following = content.read(BLOCK)
        rest += data
        # A last line without an end belongs to those before it.
        cut = rest.rfind(b"\n") + 1 if following else len(rest)
        if cut:
            yield head + rest[:cut]
            rest, head = rest[cut:], b""
        elif len(rest) > BLOCK:
            head, rest = head or rest[:LONGEST] + CARRIAGE_RETURN, rest[-LONGEST:]
        data = following


def shortened(line: bytes) -> bytes:
    """A line's beginning and end; a bar of progress may have overwritten what is between them."""
    if len(line) <= 2 * LONGEST:
        return line
    return line[:LONGEST] + CARRIAGE_RETURN + line[-LONGEST:]
