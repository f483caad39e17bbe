"""Reads logs: the lines that mean something, and how each rank ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from msgspec.structs import replace

from ddoctor import knowledge
from ddoctor.evidence import redaction
from ddoctor.evidence.log import Log, LogEvent, LogPattern, LogPatterns
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.reading import prefixes
from ddoctor.reading.inputs import LONGEST, Input, blocks
from ddoctor.reading.prefixes import Said, Writer
from ddoctor.reading.tracebacks import Raised, Tracebacks

MOST_EVENTS = 20_000
MOST_WRITERS = 10_000
LONGEST_TEXT = 1_000
"""Characters that are kept of a line."""
LONGEST_VALUE = 300
MOST_MORE = 4
UNKNOWN = -1
"""The rank of an exception that the log gives no rank."""
# What a traceback needs: its head, or its first frame where the head is missing.
OF_TRACEBACKS = ("traceback (most recent", '  file "', "error: ", "exception: ")
# torch/distributed/elastic/multiprocessing/errors: the table at the end.
TABLE_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,7}) ")
TABLE_EXIT = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,9}) +\(pid: (\d{1,9})\)")
OF_TABLES = ("exitcode", "  rank ")


@dataclass(frozen=True)
class _Pattern:
    row: LogPattern
    text: re.Pattern[str]


@dataclass
class _Seen:
    """A line that matches a pattern, with those that say the same."""

    pattern: str
    rank: int | None
    host: str
    file: str
    line: int
    last: int = 0
    count: int = 0
    text: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def event(self) -> LogEvent:
        return LogEvent(
            pattern=self.pattern,
            text=redaction.beginning(self.text.strip(), LONGEST_TEXT),
            file=self.file,
            line=self.line,
            rank=self.rank,
            host=self.host,
            values={
                key: redaction.beginning(value, LONGEST_VALUE) for key, value in self.values.items()
            },
            count=self.count,
            last=self.last,
        )


@dataclass
class LogReader:
    """Reads all logs of a run, one after the other."""

    files: list[str] = field(default_factory=list)
    lines: int = 0
    _seen: dict[tuple[object, ...], _Seen] = field(default_factory=dict)
    _writers: dict[Writer, Tracebacks] = field(default_factory=dict)
    _raised: list[tuple[Writer, Raised]] = field(default_factory=list)
    _exits: dict[int, tuple[int, int]] = field(default_factory=dict)
    _table_rank: int | None = None
    _ranks: set[int] = field(default_factory=set)
    _hosts: set[str] = field(default_factory=set)

    def read(self, given: Input) -> None:
        """Read a file, which may be of one rank or of many.

        Raises:
            OSError: it cannot be read, or is cut off within compressed data.
        """
        self.files.append(given.name)
        number, label, first = 0, None, True
        with given.opened() as content:
            for block in blocks(content):
                if first:
                    label, first = prefixes.label_of(_lines(block[: 2**16])), False
                lower = block.lower()
                if not self._open and not any(one in lower for one in _anchors()):
                    number += block.count(b"\n")
                    continue
                lines = block.removesuffix(b"\n").split(b"\n")
                for place, line in enumerate(lines):
                    number += 1
                    for part in line[:LONGEST].split(b"\r"):
                        next_lines = lines[place + 1 : place + 1 + MOST_MORE]
                        self._line(part.decode(errors="replace"), next_lines, number, label)
        self.lines += number
        for writer in self._writers:
            self._end(writer)
        self._writers.clear()

    @property
    def _open(self) -> bool:
        return any(one.open for one in self._writers.values())

    def _line(
        self,
        line: str,
        next_lines: Sequence[bytes],
        number: int,
        label: re.Pattern[str] | None,
    ) -> None:
        lower = line.lower()
        patterns = [one for one in _patterns() if any(text in lower for text in one.row.holds)]
        begins = any(one in lower for one in OF_TRACEBACKS)
        if not (patterns or begins or self._writers or any(one in lower for one in OF_TABLES)):
            return
        said = prefixes.parsed(line, label)
        if said.rank is not None:
            self._ranks.add(said.rank)
        if said.host:
            self._hosts.add(said.host)
        for one in patterns:
            more = (_text(each, label) for each in next_lines[: one.row.more])
            if match := one.text.search(" ".join([said.text, *more])):
                self._event(one.row, said, match, number)
        self._table(said.text)
        writer = said.writer
        tracebacks = self._writers.get(writer)
        if (
            tracebacks is None
            and begins
            and Tracebacks.begins(said.text)
            and len(self._writers) < MOST_WRITERS
        ):
            tracebacks = self._writers[writer] = Tracebacks()
        if tracebacks is not None:
            for raised in tracebacks.feed(said.text, number):
                self._raised.append((writer, raised))
            if not tracebacks.open:
                del self._writers[writer]

    def _end(self, writer: Writer) -> None:
        for raised in self._writers[writer].ended():
            self._raised.append((writer, raised))

    def _event(self, row: LogPattern, said: Said, match: re.Match[str], number: int) -> None:
        values = {key: value for key, value in match.groupdict().items() if value is not None}
        rank = said.about if said.rank is None else said.rank
        if values.get("rank", "").isdigit():
            rank = int(values.pop("rank"))
        host = values.pop("host", said.host)
        same = [values.get("task", "")] if row.latest else sorted(values.items())
        key = (row.name, rank, host, *same)
        seen = self._seen.get(key)
        if seen is None and len(self._seen) < MOST_EVENTS:
            seen = self._seen[key] = _Seen(row.name, rank, host, self.files[-1], number)
        if seen is not None:
            seen.count, seen.last = seen.count + 1, number
            if seen.count == 1 or row.latest:
                seen.text, seen.values, seen.line = match.string, values, number

    def _table(self, text: str) -> None:
        if match := TABLE_RANK.match(text):
            self._table_rank = int(match[1])
        elif self._table_rank is not None and (match := TABLE_EXIT.match(text)):
            self._exits[self._table_rank] = int(match[1]), int(match[2])
            self._table_rank = None

    def sections(self) -> Iterator[Log | TrainingRun]:
        """What the logs say, once all are read."""
        yield Log(
            files=tuple(self.files),
            lines=self.lines,
            ranks=len(self._ranks),
            several_hosts=len(self._hosts) > 1,
            events=tuple(one.event() for one in self._seen.values()),
        )
        endings = [*self._endings()]
        if endings:
            yield TrainingRun(command=(), seconds=0.0, ranks=tuple(endings), log=self._name)

    @property
    def _name(self) -> str:
        return self.files[0] if len(self.files) == 1 else f"{len(self.files)} logs"

    def _endings(self) -> Iterator[RankEnding]:
        """How the ranks ended, as far as the logs say it; equal exceptions without a rank once."""
        last: dict[object, RankEnding] = {}
        for order, (writer, raised) in enumerate(self._raised):
            if raised.of_launcher:
                continue
            rank = UNKNOWN if writer.rank is None else writer.rank
            ending = RankEnding(
                rank=rank,
                host=writer.host,
                pid=0,
                outcome="failed",
                steps=0,
                exception=raised.exception,
                message=raised.message,
                then=raised.then,
                stack=raised.stack,
                time=float(order),
            )
            key = rank if rank >= 0 else (raised.exception, raised.message, raised.stack)
            # A rank's last exception is the one that ended it.
            if rank >= 0 or key not in last:
                last[key] = ending
        for rank, (code, pid) in self._exits.items():
            known = last.get(rank)
            if known is not None:
                last[rank] = replace(known, exit_code=code, pid=pid)
            elif code:
                last[rank] = RankEnding(
                    rank=rank,
                    host="",
                    pid=pid,
                    outcome="killed" if code < 0 else "failed",
                    steps=0,
                    exit_code=code,
                    time=float(len(self._raised)),
                )
        yield from last.values()


def _text(line: bytes, label: re.Pattern[str] | None) -> str:
    return prefixes.parsed(line[:LONGEST].decode(errors="replace"), label).text


def _lines(block: bytes) -> list[str]:
    return [line.decode(errors="replace") for line in block.split(b"\n")[:500]]


@cache
def _patterns() -> tuple[_Pattern, ...]:
    rows = knowledge.load(LogPatterns).patterns
    return tuple(_Pattern(row, re.compile(row.text)) for row in rows)


@cache
def _anchors() -> tuple[bytes, ...]:
    """Texts in lower case: a block without any of them has no line that means something."""
    holds = (text for one in _patterns() for text in one.row.holds)
    every = {*holds, *OF_TRACEBACKS, *OF_TABLES}
    # One that contains another is never needed.
    short = [one for one in every if not any(other in one for other in every - {one})]
    return tuple(one.encode() for one in short)
