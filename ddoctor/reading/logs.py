"""Reads logs: the lines that mean something, and how each rank ended."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ddoctor.evidence import redaction
from ddoctor.evidence.log import LastLine, LineText, Log
from ddoctor.evidence.section import Section
from ddoctor.reading import prefixes
from ddoctor.reading.excerpts import Surroundings
from ddoctor.reading.inputs import LONGEST, Content, Input, blocks, shortened
from ddoctor.reading.log_endings import LogEndings
from ddoctor.reading.log_lines import Forms, Meaning
from ddoctor.reading.machine.outputs import MAY_BEGIN, OF_BEGINNINGS, Outputs
from ddoctor.reading.pace import Pace
from ddoctor.reading.prefixes import Said, Writer
from ddoctor.reading.seen_lines import LONGEST_VALUE, SeenLine
from ddoctor.reading.stacks import Stacks
from ddoctor.reading.tracebacks import Raised, Tracebacks

GLANCE = 500
"""Lines by which the labels of a file are recognised, and each output of a command."""
MOST_EVENTS = 20_000
MOST_WRITERS = 10_000
MOST_RANKS = 100_000
MOST_SILENT = 10_000
"""Lines of others after which a traceback is not waited for any more."""
MOST_MORE = 4
"""Following lines that may belong to one."""
MOST_EXCERPTS = 50
"""Excerpts that are kept of the lines of one pattern."""
MOST_LAST = 2_000
"""Lines at the end of a file in which the last one of each rank is looked for."""
FEW_LAST = 200
"""If none of these at the end names a rank, no line of the file may."""
NOBODY = Said("")
NOTHING = "\0\ufeff"
"""What may be before a line: NUL bytes of a file with a hole, a mark of the byte order."""
MOST_BEFORE, MOST_AT_THE_END = 20, 8
"""Lines before a traceback, and at the end of a file, in which progress is looked for."""
FEW_RANKS = 64
PROGRESS = re.compile(r"(?i)\b(?:step|epoch|iter|iteration|loss)\b")
DIGIT = re.compile(r"\d+")
BOTH, MOST_BOTH = re.compile(rb"\]:\[rank\d{1,7}\]:"), 64
"""Between torchrun's local rank and torch's rank; lines of a block with both that are looked at."""
TERMINATED, WATCHDOG, REMOTE = "terminated", "watchdog", "nccl-remote"
"""The pattern of what C++ prints before it aborts."""


@dataclass
class LogReader:
    """Reads all logs of a run, one after the other."""

    first_rank: int = 0
    """The rank of the host's first process, where lines name local ranks only."""
    files: list[str] = field(default_factory=list)
    lines: int = 0
    outputs: Outputs = field(default_factory=Outputs)
    """What commands of a machine printed."""
    _seen: dict[tuple[object, ...], SeenLine] = field(default_factory=dict)
    _excerpts: Counter[str] = field(default_factory=Counter)
    """How many are kept of each pattern."""
    _forms: Forms = field(default_factory=Forms)
    _label: re.Pattern[str] | None = None
    """What nearly each line of the file begins with."""
    _indent: int = 0
    """Blanks before each line of the file, as before lines that are quoted in a mail."""
    _near: Surroundings = field(default_factory=partial(Surroundings, ""))
    """The lines of the file that were read last."""
    _last: dict[int, LastLine] = field(default_factory=dict)
    _writers: dict[Writer, Tracebacks] = field(default_factory=dict)
    """Those with a traceback whose end has not come."""
    _endings: LogEndings = field(default_factory=LogEndings)
    _stacks: Stacks = field(default_factory=Stacks)
    _pace: Pace = field(default_factory=Pace)
    _ranks: set[int] = field(default_factory=set)
    _hosts: set[str] = field(default_factory=set)
    _firsts: dict[str, int | None] = field(default_factory=dict)
    """The rank of the first process by host, or by file where lines name no host. Lines that say
    both rank and local rank tell it: launchers number the ranks of a host one after the other.
    None: the lines of a file are of several hosts."""
    _of_file: Said = NOBODY
    """What the path of the file says about the writer."""

    def read(self, given: Input, content: Content) -> None:
        """Read a file, which may be of one rank or of many.

        Raises:
            OSError: it cannot be read, or is cut off within compressed data.
        """
        self.files.append(given.name)
        self._of_file = prefixes.of_file(given.path)
        self._near = Surroundings(given.name)
        self._forms.begin()
        try:
            for block in blocks(content):
                self._block(block)
        finally:
            # What was read of a damaged file counts.
            self._end_of_file()

    def _block(self, block: bytes) -> None:
        lines = block.removesuffix(b"\n").split(b"\n")
        number = self._near.take(lines)
        begins = number == 1
        if begins:
            first = [one[:LONGEST].decode(errors="replace") for one in lines[:GLANCE]]
            written = [one for one in first if one.strip()]
            self._indent = min((len(one) - len(one.lstrip(" ")) for one in written), default=0)
            self._label = prefixes.label_of([one[self._indent :] for one in first])
        for match in itertools.islice(BOTH.finditer(block), MOST_BOTH):
            # Before lines with a local rank alone, of which it tells the rank.
            begin = max(block.rfind(b"\n", 0, match.start()) + 1, match.start() - LONGEST)
            self._said(block[begin : match.end()])
        writers, stacks = self._writers, self._stacks.unfinished
        outputs = self.outputs.unfinished
        for place, meaning in enumerate(self._forms.of_block(block)[: len(lines)]):
            if meaning is not None or writers or stacks:
                more = lines[place + 1 : place + 1 + MOST_MORE]
                self._line(lines[place], more, number + place, meaning)
            elif (
                outputs
                or self.outputs.named_at == number + place
                or (begins and place < GLANCE and MAY_BEGIN.search(lines[place], 0, LONGEST))
            ):
                self._output(self._said(shortened(lines[place])), number + place, None)
        self._pace.look(lines, number, self.files[-1], self._said)
        self.lines += len(lines)
        self._forget(number + len(lines) - MOST_SILENT)

    def _end_of_file(self) -> None:
        self._look_at_the_end()
        for writer, tracebacks in self._writers.items():
            self._keep(writer, tracebacks.ended(), tracebacks.before)
        self._writers.clear()
        end = self._near.end
        ranks = {None, *self._ranks} if len(self._ranks) <= FEW_RANKS else {None}
        progress = {rank: self._progress(end, MOST_AT_THE_END, rank) for rank in ranks}
        self._endings.continued(self.files[-1], progress)
        self._stacks.ended()
        self.outputs.ended()

    def _look_at_the_end(self) -> None:
        """Remember the last line of each rank."""
        found = set[int]()
        for looked, (number, line) in enumerate(self._near.backwards(MOST_LAST)):
            if looked == FEW_LAST and not found:
                break
            said = self._said(line)
            text = said.text.strip()
            if said.rank is None or said.rank in found or not text:
                continue
            found.add(said.rank)
            if said.rank in self._last or len(self._last) < MOST_RANKS:
                text = redaction.beginning(text, LONGEST_VALUE)
                self._last[said.rank] = LastLine(
                    rank=said.rank, text=text, file=self.files[-1], line=number
                )
            if self._of_file != NOBODY:
                break

    def _forget(self, before: int) -> None:
        """Close the tracebacks of writers that have written nothing since a line."""
        silent = [writer for writer, one in self._writers.items() if one.last < before]
        for writer in silent:
            one = self._writers.pop(writer)
            self._keep(writer, one.ended(), one.before)

    def _line(
        self,
        line: bytes,
        more: Sequence[bytes],
        number: int,
        meaning: Meaning | None,
    ) -> None:
        parts = shortened(line).rstrip(b"\r").split(b"\r")
        # Of bars that overwrite one another, the last one counts.
        for part in parts[-1:] if meaning is not None and meaning.bar else parts:
            said = self._said(part)
            if said.rank is not None and len(self._ranks) < MOST_RANKS:
                self._ranks.add(said.rank)
            if said.host and len(self._hosts) < MOST_RANKS:
                self._hosts.add(said.host)
            if meaning is None:
                self._continues(said, number)
                continue
            tracebacks = self._writers.get(said.writer)
            ignored = tracebacks is not None and tracebacks.ignored
            for one in meaning.patterns if not ignored else ():
                text = " ".join([said.text, *(self._text(each) for each in more[: one.row.more])])
                if match := one.text.search(text):
                    self._event(one.row, said, match, number)
            one_host = len(self._hosts) < 2
            self._endings.row(said.text, partial(self._near.around, number), one_host=one_host)
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
        if self.outputs.unfinished or number <= GLANCE:
            self._output(said, number, None)

    def _output(self, said: Said, number: int, meaning: Meaning | None) -> None:
        kinds = meaning.outputs if meaning is not None else ()
        if number <= GLANCE:
            kinds += OF_BEGINNINGS
        self.outputs.feed(said, self.files[-1], number, kinds)

    def _said(self, line: bytes) -> Said:
        return self._known(self._parsed(line))

    def _text(self, line: bytes) -> str:
        return self._parsed(line[:LONGEST]).text

    def _parsed(self, line: bytes) -> Said:
        text = line.decode(errors="replace").lstrip(NOTHING)
        if self._indent and not text[: self._indent].strip(" "):
            text = text[self._indent :]
        if self._label is None:
            self._label = prefixes.label_before(text)
        return prefixes.parsed(text, self._label)

    def _known(self, said: Said) -> Said:
        """A line with the rank that the file's name or other lines say."""
        if said.rank is None and said.local is None:
            said = said._replace(rank=self._of_file.rank, local=self._of_file.local)
        if said.local is None:
            return said
        if said.rank is None:
            first = self._first_of(said.host)
            return said if first is None else said._replace(rank=first + said.local)
        where = said.host or self.files[-1]
        if len(self._firsts) < MOST_RANKS:
            told = said.rank - said.local
            self._firsts[where] = told if self._firsts.get(where, told) == told >= 0 else None
        return said

    def _first_of(self, host: str) -> int | None:
        """The rank of a host's first process; None: no line says it."""
        where = host or self.files[-1]
        if where in self._firsts:
            return self._firsts[where]
        if self._hosts:
            # On one host both numbers count the same processes.
            return self.first_rank if len(self._hosts) < 2 else None
        others = {*self._firsts.values()} or {self.first_rank}
        return others.pop() if len(others) == 1 else None

    def _traceback(self, said: Said, number: int) -> None:
        writer = said.writer
        tracebacks = self._writers.get(writer)
        if tracebacks is None:
            if not Tracebacks.begins(said.text) or len(self._writers) >= MOST_WRITERS:
                return
            tracebacks = self._writers[writer] = Tracebacks()
            tracebacks.before = frozenset(self._progress(number, MOST_BEFORE, said.rank))
        self._keep(writer, tracebacks.feed(said.text, number), tracebacks.before)
        if not tracebacks.open:
            del self._writers[writer]

    def _progress(self, end: int, most: int, rank: int | None) -> Mapping[str, int]:
        """The forms of a rank's lines of progress before a line, with the last number of each."""
        said = ((number, self._said(line)) for number, line in self._near.before(end, most))
        return {
            DIGIT.sub("", one.text.strip()): number
            for number, one in said
            if one.rank == rank and PROGRESS.search(one.text)
        }

    def _keep(self, writer: Writer, found: Iterator[Raised], before: frozenset[str]) -> None:
        for one in found:
            self._endings.raised(writer, one, self._near.around(one.line), before)

    def _event(self, row: LineText, said: Said, match: re.Match[str], number: int) -> None:
        values = {key: value for key, value in match.groupdict().items() if value is not None}
        rank = said.about if said.rank is None else said.rank
        if values.get("rank", "").isdigit():
            rank = int(values.pop("rank"))
        host = values.pop("host", said.host)
        same = [values.get("task", "")] if row.latest else sorted(values.items())
        key = (row.name, rank, host, *same)
        seen = self._seen.get(key)
        if seen is None and len(self._seen) < MOST_EVENTS:
            seen = self._seen[key] = SeenLine(row.name, rank, host, self.files[-1], number)
            if not row.latest and self._excerpts[row.name] < MOST_EXCERPTS:
                self._excerpts[row.name] += 1
                seen.around = self._near.around(number)
        if seen is not None:
            seen.count, seen.last = seen.count + 1, number
            if seen.count == 1 or row.latest:
                seen.text, seen.values, seen.line = match.string, values, number

    def sections(self) -> Iterator[Section]:
        """What the logs say, once all are read."""
        if not self.files:
            return
        printed = self.outputs.tells()
        arounds = [one.around for one in self._seen.values() if one.around is not None]
        arounds += self._endings.arounds
        # Some loggers leave out the year; those of one run are of one year.
        year = max((one.year for one in arounds), default=0)
        excerpts = {(one.file, one.line): one.excerpt(year) for one in arounds if one.lines}
        yield Log(
            files=tuple(self.files),
            lines=self.lines,
            ranks=len(self._ranks),
            several_hosts=len(self._hosts) > 1,
            events=tuple(
                one.event() for one in self._seen.values() if not printed(one.file, one.line)
            ),
            excerpts=tuple(excerpts.values()),
            last=tuple(self._last.values()),
        )
        name = self.files[0] if len(self.files) == 1 else f"{len(self.files)} logs"
        if run := self._endings.run(name, lambda one: one.excerpt(year), self._last_words):
            yield run
        yield from self._stacks.sections()
        yield from self._pace.sections()

    def _last_words(self, rank: int) -> str:
        """What C++ printed as it ended a rank; empty: no line says it."""
        every = [one for one in self._seen.values() if one.pattern == TERMINATED]
        found = next((one for one in every if one.rank in (rank, None)), None)
        if found is None:
            own = (one for one in self._seen.values() if one.pattern in (WATCHDOG, REMOTE))
            return next((one.text for one in own if one.rank == rank), "")
        said = ": ".join(filter(None, (found.values.get("kind"), found.values.get("what"))))
        return said or "terminate called without an active exception"
