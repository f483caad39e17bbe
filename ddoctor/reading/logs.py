"""Reads logs: the lines that mean something, and how each rank ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace as with_fields

from ddoctor.evidence import redaction
from ddoctor.evidence.log import Log, LogEvent, LogPattern
from ddoctor.evidence.section import Section
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.reading import prefixes
from ddoctor.reading.inputs import LONGEST, Content, Input, blocks, shortened
from ddoctor.reading.log_lines import Forms, Meaning
from ddoctor.reading.machine.outputs import KINDS, Outputs
from ddoctor.reading.prefixes import Said, Writer
from ddoctor.reading.stacks import Stacks
from ddoctor.reading.tracebacks import Raised, Tracebacks

GLANCE = 500
"""Lines by which the labels of a file are recognised, and each output of a command."""
MOST_EVENTS = 20_000
MOST_WRITERS = 10_000
MOST_RANKS = 100_000
MOST_SILENT = 10_000
"""Lines of others after which a traceback is not waited for any more."""
MOST_RAISED = 2_000
"""Exceptions that are kept, the first ones."""
LONGEST_TEXT = 1_000
"""Characters that are kept of a line."""
LONGEST_VALUE = 300
MOST_MORE = 4
"""Following lines that may belong to one."""
LONGEST_MESSAGE = 4_000
UNKNOWN = -1
"""The rank of an exception that the log gives no rank."""
ABORTED, TERMINATED = -6, "terminated"
"""The exit code of SIGABRT, and the pattern of what C++ prints before."""
# torch/distributed/elastic/multiprocessing/errors: the table at the end.
TABLE_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,7}) ")
TABLE_EXIT = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,9}) +\(pid: (\d{1,9})\)")


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


@dataclass(frozen=True)
class _Failure:
    """An exception, who raised it, and the number of the file that says so."""

    writer: Writer
    file: int
    raised: Raised

    @property
    def order(self) -> tuple[int, int]:
        return self.file, self.raised.line


@dataclass
class LogReader:
    """Reads all logs of a run, one after the other."""

    files: list[str] = field(default_factory=list)
    lines: int = 0
    outputs: Outputs = field(default_factory=Outputs)
    """What commands of a machine printed."""
    _seen: dict[tuple[object, ...], _Seen] = field(default_factory=dict)
    _writers: dict[Writer, Tracebacks] = field(default_factory=dict)
    """Those with a traceback whose end has not come."""
    _raised: dict[object, _Failure] = field(default_factory=dict)
    """The last of each rank, each one without a rank."""
    _stacks: Stacks = field(default_factory=Stacks)
    _exits: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    """Exit code, PID and line of each rank in a table of torchrun."""
    _table_rank: int | None = None
    _ranks: set[int] = field(default_factory=set)
    _hosts: set[str] = field(default_factory=set)
    _of_local: dict[tuple[str, int], int] = field(default_factory=dict)
    """The rank by host and local rank, as far as lines say both."""
    _of_file: Said = field(default_factory=partial(Said, ""))
    """What the path of the file says about the writer."""

    def read(self, given: Input, content: Content) -> None:
        """Read a file, which may be of one rank or of many.

        Raises:
            OSError: it cannot be read, or is cut off within compressed data.
        """
        self.files.append(given.name)
        self._of_file = prefixes.of_file(given.path)
        number, label, forms = 0, None, None
        writers, stacks = self._writers, self._stacks.unfinished
        outputs = self.outputs.unfinished
        for block in blocks(content):
            lines = block.removesuffix(b"\n").split(b"\n")
            if forms is None:
                first = [one[:LONGEST].decode(errors="replace") for one in lines[:GLANCE]]
                label, forms = prefixes.label_of(first), Forms()
            begins = number == 0
            for place, meaning in enumerate(forms.of_block(block)[: len(lines)]):
                if meaning is not None or writers or stacks:
                    more = lines[place + 1 : place + 1 + MOST_MORE]
                    self._line(lines[place], more, number + place + 1, label, meaning)
                elif outputs or (begins and place < GLANCE):
                    said = self._said(shortened(lines[place]), label)
                    self._output(said, number + place + 1, None)
            number += len(lines)
            self._forget(number - MOST_SILENT)
        self.lines += number
        for writer, tracebacks in self._writers.items():
            self._keep(writer, tracebacks.ended())
        self._writers.clear()
        self._stacks.ended()
        self.outputs.ended()

    def _forget(self, before: int) -> None:
        """Close the tracebacks of writers that have written nothing since a line."""
        silent = [writer for writer, one in self._writers.items() if one.last < before]
        for writer in silent:
            self._keep(writer, self._writers.pop(writer).ended())

    def _line(
        self,
        line: bytes,
        more: Sequence[bytes],
        number: int,
        label: re.Pattern[str] | None,
        meaning: Meaning | None,
    ) -> None:
        parts = shortened(line).rstrip(b"\r").split(b"\r")
        # Of bars that overwrite one another, the last one counts.
        for part in parts[-1:] if meaning is not None and meaning.bar else parts:
            said = self._said(part, label)
            if said.rank is not None and len(self._ranks) < MOST_RANKS:
                self._ranks.add(said.rank)
            if said.host and len(self._hosts) < MOST_RANKS:
                self._hosts.add(said.host)
            if meaning is None:
                self._continues(said, number)
                continue
            for one in meaning.patterns:
                text = " ".join([said.text, *(_text(each, label) for each in more[: one.row.more])])
                if match := one.text.search(text):
                    self._event(one.row, said, match, number)
            self._table(said.text, number)
            self._traceback(said, number)
            if self._stacks.unfinished or Stacks.begins(said.text):
                self._stacks.feed(said, self.files[-1], number)
            self._output(said, number, meaning)

    def _continues(self, said: Said, number: int) -> None:
        """Take a line that begins nothing."""
        if said.writer in self._writers:
            self._traceback(said, number)
        if self._stacks.unfinished:
            self._stacks.feed(said, self.files[-1], number)
        self._output(said, number, None)

    def _output(self, said: Said, number: int, meaning: Meaning | None) -> None:
        kinds = KINDS if number <= GLANCE else meaning.outputs if meaning is not None else ()
        if kinds or self.outputs.unfinished or (meaning is not None and meaning.prompt):
            self.outputs.feed(said, self.files[-1], number, kinds)

    def _said(self, line: bytes, label: re.Pattern[str] | None) -> Said:
        return self._known(prefixes.parsed(line.decode(errors="replace"), label))

    def _known(self, said: Said) -> Said:
        """A line with the rank that the file's name or other lines say."""
        if said.rank is None and said.local is None:
            said = said._replace(rank=self._of_file.rank, local=self._of_file.local)
        if said.local is None:
            return said
        if said.rank is not None:
            if len(self._of_local) < MOST_RANKS:
                self._of_local[said.host, said.local] = said.rank
            return said
        rank = self._of_local.get((said.host, said.local))
        if rank is None and len(self._hosts) < 2:
            # On one host both numbers are the same.
            rank = said.local
        return said._replace(rank=rank)

    def _traceback(self, said: Said, number: int) -> None:
        writer = said.writer
        tracebacks = self._writers.get(writer)
        if tracebacks is None:
            if not Tracebacks.begins(said.text) or len(self._writers) >= MOST_WRITERS:
                return
            tracebacks = self._writers[writer] = Tracebacks()
        self._keep(writer, tracebacks.feed(said.text, number))
        if not tracebacks.open:
            del self._writers[writer]

    def _keep(self, writer: Writer, found: Iterator[Raised]) -> None:
        for one in found:
            place = one.stack[-1] if one.stack else None
            key = writer.rank
            # Without a rank, only the text separates the exceptions of one process from another's.
            distinct = (one.exception, one.message, place) if key is None else key
            if one.of_launcher or (key is None and distinct in self._raised):
                continue
            if len(self._raised) < MOST_RAISED or distinct in self._raised:
                self._raised[distinct] = _Failure(writer, len(self.files) - 1, one)

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

    def _table(self, text: str, number: int) -> None:
        if match := TABLE_RANK.match(text):
            self._table_rank = int(match[1])
        elif self._table_rank is not None and (match := TABLE_EXIT.match(text)):
            if len(self._exits) < MOST_RANKS:
                place = f"{self.files[-1]}:{number}"
                self._exits[self._table_rank] = int(match[1]), int(match[2]), place
            self._table_rank = None

    def sections(self) -> Iterator[Section]:
        """What the logs say, once all are read."""
        if not self.files:
            return
        printed = self.outputs.tells()
        yield Log(
            files=tuple(self.files),
            lines=self.lines,
            ranks=len(self._ranks),
            several_hosts=len(self._hosts) > 1,
            events=tuple(
                one.event() for one in self._seen.values() if not printed(one.file, one.line)
            ),
        )
        endings = [*self._endings()]
        if endings:
            yield TrainingRun(command=(), seconds=0.0, ranks=tuple(endings), log=self._name)
        yield from self._stacks.sections()

    def _last_words(self, rank: int) -> str:
        """What C++ printed as it ended a rank; empty: no line says it."""
        every = (one for one in self._seen.values() if one.pattern == TERMINATED)
        found = next((one for one in every if one.rank in (rank, None)), None)
        if found is None:
            return ""
        said = ": ".join(filter(None, (found.values.get("kind"), found.values.get("what"))))
        return said or "terminate called without an active exception"

    @property
    def _name(self) -> str:
        return self.files[0] if len(self.files) == 1 else f"{len(self.files)} logs"

    def _endings(self) -> Iterator[RankEnding]:
        """How the ranks ended, as far as the logs say it."""
        last: dict[object, RankEnding] = {}
        ordered = sorted(self._raised.items(), key=lambda item: item[1].order)
        for place, (key, failure) in enumerate(ordered):
            writer, raised = failure.writer, failure.raised
            last[key] = RankEnding(
                rank=UNKNOWN if writer.rank is None else writer.rank,
                host=writer.host,
                pid=0,
                outcome="failed",
                steps=0,
                exception=raised.exception,
                message=redaction.beginning(raised.message, LONGEST_MESSAGE),
                then=redaction.beginning(raised.then, LONGEST_MESSAGE),
                stack=raised.stack,
                time=float(place),
                logged=f"{self.files[failure.file]}:{raised.line}",
            )
        for rank, (code, pid, at) in self._exits.items():
            known = last.get(rank)
            if known is not None:
                last[rank] = with_fields(known, exit_code=code, pid=pid)
            elif code:
                last[rank] = RankEnding(
                    rank=rank,
                    host="",
                    pid=pid,
                    outcome="killed" if code < 0 else "failed",
                    steps=0,
                    exit_code=code,
                    printed=self._last_words(rank) if code == ABORTED else "",
                    logged=at,
                    time=float(len(ordered)),
                )
        yield from last.values()


def _text(line: bytes, label: re.Pattern[str] | None) -> str:
    return prefixes.parsed(line[:LONGEST].decode(errors="replace"), label).text
