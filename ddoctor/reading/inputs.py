"""The files that a user names: folders are walked, and compressed files read as they are."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from ddoctor.evidence.opening import without_waiting

STDIN = Path("-")
MOST_FILES = 20_000
"""Of all folders: a log of each rank, and a few more."""
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


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file, or standard input."""

    path: Path
    name: str
    """The name that reports show: its path below the folder that was named."""

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file's content, decompressed.

        Raises:
            OSError: it cannot be read.
        """
        if self.path == STDIN:
            yield sys.stdin.buffer
            return
        with open(self.path, "rb", opener=without_waiting) as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode) and not file.peek(1):
                raise OSError(errno.ENODATA, "no process writes to it")
            with _decompressed(file) as content:
                yield content

    @property
    def written(self) -> float:
        """When it was written, in seconds since 1970; 0: not known."""
        return 0.0 if self.path == STDIN else self.path.stat().st_mtime

    def beginning(self, most: int = BLOCK) -> bytes:
        """The first bytes of its content, for a glance; empty for standard input."""
        if self.path == STDIN:
            return cast(BufferedReader, sys.stdin.buffer).peek(most)[:most]
        with self.opened() as content:
            return content.read(most)


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
        import zstandard

        try:
            with zstandard.ZstdDecompressor().stream_reader(file) as content:
                yield content
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
    elif first.startswith(b"BZh"):
        with bz2.open(file, "rb") as content:
            yield content  # type: ignore[misc]
    else:
        yield file


def found(paths: Sequence[Path]) -> Iterator[Input | NotRead]:
    """The files of these paths, those within folders in the order of their names."""
    for path in paths:
        if path == STDIN:
            yield Input(path=path, name="stdin")
        elif path.is_dir():
            yield from _within(path)
        else:
            yield Input(path=path, name=path.name)


def _within(folder: Path) -> Iterator[Input | NotRead]:
    denied: list[NotRead] = []

    def tell(error: OSError) -> None:
        name = os.path.relpath(error.filename, folder)
        denied.append(NotRead(name=name, why=error.strerror or str(error)))

    count = 0
    for where, folders, names in os.walk(folder, onerror=tell):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > MOST_FILES:
                why = f"the folder has more than {MOST_FILES} files"
                yield NotRead(name=folder.name, why=why)
                return
            path = Path(where, name)
            yield Input(path=path, name=str(path.relative_to(folder)))
    yield from denied


def blocks(content: BinaryIO) -> Iterator[bytes]:
    """Whole lines of about a mebibyte together; of a longer line, its beginning and its end."""
    rest, head = b"", b""
    while data := content.read(BLOCK):
        rest += data
        cut = rest.rfind(b"\n") + 1
        if cut:
            yield head + rest[:cut]
            rest, head = rest[cut:], b""
        elif len(rest) > BLOCK:
            head, rest = head or rest[:LONGEST] + CARRIAGE_RETURN, rest[-LONGEST:]
    if head or rest:
        yield head + rest


def shortened(line: bytes) -> bytes:
    """A line's beginning and end; a bar of progress may have overwritten what is between them."""
    if len(line) <= 2 * LONGEST:
        return line
    return line[:LONGEST] + CARRIAGE_RETURN + line[-LONGEST:]
