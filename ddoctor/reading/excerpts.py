"""The lines of a log around one, while the file is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddoctor.evidence import redaction
from ddoctor.evidence.log import Excerpt
from ddoctor.reading.prefixes import ESCAPES
from ddoctor.reading.stamps import LEAP, Stamp, stamp_of

BEFORE, AFTER = 4, 2
"""Lines of an excerpt before and after the line of an event."""
LONGEST_LINE = 200
"""Characters that are shown of a line."""
LONGEST = 2_000
"""Bytes that are kept of it: a secret is recognised by its whole."""
MOST_BACK = 200
"""Lines before a line in which its time stamp is looked for."""


class Around(NamedTuple):
    """A line with those around it, and its time stamp or the last one before."""

    file: str
    line: int
    first: int
    lines: Sequence[bytes]
    stamp: Stamp | None

    @property
    def year(self) -> int:
        """The year of its stamp; 0: not known."""
        return self.stamp.year if self.stamp is not None else 0

    def excerpt(self, year: int) -> Excerpt:
        """The same without secrets; ``year``: that of stamps without one."""
        return Excerpt(
            file=self.file,
            line=self.line,
            first=self.first,
            lines=tuple(map(_shown, self.lines)),
            time=None if self.stamp is None else self.stamp.seconds(year or LEAP),
            zoned=self.stamp is not None and self.stamp.ahead is not None,
        )


@dataclass
class Surroundings:
    """The last lines of a file that were read."""

    file: str
    _before: Sequence[bytes] = ()
    _lines: Sequence[bytes] = ()
    _begin: int = 1
    """Number of the first of the lines."""
    _stamp: tuple[int, Stamp | None] = field(default=(0, None))
    """The last stamp that was looked for, and the number of the line from which it was."""

    def take(self, lines: Sequence[bytes]) -> int:
        """Continue with the next lines; return the number of the first."""
        self._begin += len(self._lines)
        self._before, self._lines = self._lines, lines
        return self._begin

    def around(self, number: int) -> Around:
        """The lines around one of them; if it is long gone, no lines."""
        first = max(number - BEFORE, self._first)
        end = min(number + AFTER + 1, self._end)
        lines = [_last_part(self._line(one)) for one in range(first, end)]
        return Around(self.file, number, first, lines, self._stamped(number))

    def backwards(self, most: int) -> Iterator[tuple[int, bytes]]:
        """The last ``most`` lines with their numbers, the last one first."""
        for number in range(self._end - 1, max(self._first, self._end - most) - 1, -1):
            yield number, _last_part(self._line(number))

    @property
    def end(self) -> int:
        """Number of the line after the last one."""
        return self._end

    def before(self, number: int, most: int) -> Iterator[tuple[int, bytes]]:
        """The last ``most`` lines before one, with their numbers."""
        for one in range(max(self._first, number - most), min(number, self._end)):
            yield one, _last_part(self._line(one))

    def _stamped(self, number: int) -> Stamp | None:
        searched, found = self._stamp
        if number < searched:
            searched, found = 0, None
        if number - searched > MOST_BACK:
            searched, found = number - MOST_BACK, None
        for one in range(min(number, self._end - 1), max(searched, self._first - 1), -1):
            if stamp := stamp_of(self._line(one)):
                found = stamp
                break
        self._stamp = number, found
        return found

    @property
    def _first(self) -> int:
        return self._begin - len(self._before)

    @property
    def _end(self) -> int:
        return self._begin + len(self._lines)

    def _line(self, number: int) -> bytes:
        place = number - self._begin
        return self._lines[place] if place >= 0 else self._before[place]


def _last_part(line: bytes) -> bytes:
    """Of a line that overwrites itself, what was visible last."""
    return line.rstrip(b"\r").rpartition(b"\r")[2][:LONGEST]


def _shown(line: bytes) -> str:
    return redaction.beginning(ESCAPES.sub("", line.decode(errors="replace")), LONGEST_LINE)
