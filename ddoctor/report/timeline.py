"""The timeline of a failure: which rank failed first, how the others learned of it, and where a
log says so."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import NamedTuple

from ddoctor.analysis import log_events
from ddoctor.analysis.log_order import in_order
from ddoctor.evidence.log import Excerpt, Log, LogEvent
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Report, Severity
from ddoctor.report.places import hosts, ranks
from ddoctor.report.training import CONNECTION_LOST, badly, reason, short, went
from ddoctor.report.wording import Grid, quantity, span

MOST = 16
"""At most this many rows are shown; of more, the first ones."""
HEAD = ("rank", "what happened", "at", "steps", "last in", "message", "line", "log")
NOT_ORDERED = (
    "The order between the files is not known, because their lines have no comparable time stamps."
)
OWN, ECHO, OTHER = range(3)
"""The order of rows: failures with what a finding names, then what followed from them."""
HEARD: Mapping[str, str] = {
    "watchdog": "timed out waiting for another rank",
    "store-wait": "timed out waiting for another rank",
    "abort": "aborted",
}
"""What a line says that only reports the failure of another rank."""
# Addresses, counts and ports differ between ranks that do the same.
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What happened to ranks that did the same; the texts are those of the first of them."""

    stage: int
    numbers: tuple[int, ...] = ()
    host: str = ""
    what: str
    seconds: tuple[float, ...] = ()
    """From the start of the run to the end of each."""
    steps: tuple[int, ...] = ()
    doing: str = ""
    message: str = ""
    line: str = ""
    """The line of the script."""
    place: str = ""
    """File and line of a log."""
    excerpt: Excerpt | None = None

    @property
    def is_named(self) -> bool:
        """Whether it is known which ranks or which host it is of."""
        return bool(self.host) or any(number >= 0 for number in self.numbers)

    @property
    def who(self) -> str:
        """The ranks, or else the host."""
        named = [number for number in self.numbers if number >= 0]
        return ranks(named) or hosts([self.host] if self.host else []) or "not named"

    @property
    def at(self) -> str:
        """When it happened: since the start of the run, or by the clock of a log."""
        if self.seconds and any(self.seconds):
            return span(quantity(min(self.seconds)), quantity(max(self.seconds))) + " s"
        time = self.excerpt.time if self.excerpt is not None else None
        if time is None:
            return ""
        return f"{datetime.fromtimestamp(time, timezone.utc):%H:%M:%S}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts of its columns."""
        taken = span(str(min(self.steps)), str(max(self.steps))) if self.steps else ""
        line = f"`{self.line}`" if self.line else ""
        return (
            *(self.who, self.what, self.at, taken),
            *(self.doing, self.message, line, self.place),
        )

    def __str__(self) -> str:
        """Return one line: when, what, and where the log says it."""
        at = f"{self.at}: " if self.at else ""
        doing = f" in {self.doing}" if self.doing else ""
        message = f": {self.message}" if self.message else ""
        return f"{at}{self.what}{doing}{message}" + (f" ({self.place})" if self.place else "")

    @property
    def kind(self) -> tuple[object, ...]:
        """The same for ranks that did the same."""
        host = "" if self.numbers else self.host
        message = NUMBERS.sub("0", self.message)
        return self.stage, self.what, self.doing, message, self.line, host


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What happened, the first failure first."""

    rows: tuple[Row, ...] = ()
    more: int = 0
    """Rows that are not shown."""
    of_log: bool = False
    note: str = ""

    @property
    def table(self) -> Grid:
        """The rows as a table."""
        rows = tuple(row.cells for row in self.rows)
        return Grid(head=HEAD, rows=rows, title="timeline of the failure").without_empty_columns()


class Numbered(NamedTuple):
    """A line of an excerpt behind its number."""

    text: str
    is_event: bool
    """Whether it is the line of the event itself."""


def numbered(excerpt: Excerpt) -> tuple[Numbered, ...]:
    """Return the lines with their numbers; a mark is before that of the event."""
    width = len(str(excerpt.first + len(excerpt.lines)))
    return tuple(
        Numbered(
            f"{'>' if number == excerpt.line else ' '} {number:{width}}  {line}".rstrip(),
            number == excerpt.line,
        )
        for number, line in enumerate(excerpt.lines, excerpt.first)
    )


def timeline(report: Report, evidence: Evidence) -> Timeline:
    """Return what happened; without rows: nothing failed."""
    logs = evidence.all(Log)
    excerpts = {one.place: one for log in logs for one in log.excerpts}
    runs = evidence.all(TrainingRun)
    rows = [row for run in runs for row in _endings(run)]
    told = {row.place for row in rows}
    for log in logs:
        rows += [row for row in _named(report, log) if row.place not in told]
        rows += _heard(log, {number for row in rows for number in row.numbers})
    if not any(row.stage < OTHER for row in rows):
        return Timeline()
    for log in logs:
        rows += _silent(log, {number for row in rows for number in row.numbers})
    rows = [replace(row, excerpt=excerpts.get(row.place)) for row in rows]
    positions = dict[str, int]()
    # The order of the failures themselves comes last, because it is the one that must be known.
    for stage in (ECHO, OWN):
        order, is_known = in_order(
            row.excerpt for row in rows if row.excerpt and row.stage == stage
        )
        positions |= {one.place: number for number, one in enumerate(order)}
    rows.sort(key=lambda row: (row.stage, positions.get(row.place, 0)))
    is_known = is_known and all(run.ordered for run in runs)
    groups = _grouped(rows)
    ended = [row for row in groups if row.stage == OWN and row.numbers]
    if is_known and ended and sum(row.stage < OTHER for row in rows) > 1:
        first = groups.index(ended[0])
        groups[first] = replace(groups[first], what=f"{groups[first].what} first")
    return Timeline(
        rows=tuple(groups[:MOST]),
        more=len(groups[MOST:]),
        of_log=bool(logs),
        note="" if is_known else NOT_ORDERED,
    )


def _grouped(rows: Iterable[Row]) -> list[Row]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.kind, []).append(row)
    return [
        replace(
            same[0],
            numbers=tuple(sorted({number for row in same for number in row.numbers})),
            seconds=tuple(second for row in same for second in row.seconds),
            steps=tuple(step for row in same for step in row.steps),
        )
        for same in groups.values()
    ]


def _endings(run: TrainingRun) -> Iterator[Row]:
    """How the ranks ended, if one of them ended badly."""
    bad = badly(run)
    if not bad:
        return
    own, fell = {id(one) for one in run.failures}, {id(one) for one in bad}
    for one in bad:
        yield _ending(run, one, OWN if id(one) in own else ECHO)
    for one in run.ranks:
        if id(one) not in fell:
            yield _ending(run, one, OTHER)


def _ending(run: TrainingRun, one: RankEnding, stage: int) -> Row:
    frame = one.place
    line = f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.text}".strip() if frame else ""
    asked = stage == ECHO and one.exit_code == -signal.SIGTERM and not one.exception
    return Row(
        stage=stage,
        numbers=(one.rank,),
        host=one.host,
        what="ended by SIGTERM after the failure" if asked else went(one),
        seconds=() if run.log else (one.time,),
        steps=() if run.log else (one.steps,),
        doing="" if one.outcome == "hung" else one.doing,
        message=reason(one),
        line=line,
        place=one.logged,
    )


def _named(report: Report, log: Log) -> Iterator[Row]:
    """The lines of the kinds that a finding names."""
    places = {
        row.name
        for finding in report.findings
        if finding.severity > Severity.NOTE
        for row in finding.evidence
    }
    kinds = {one.pattern for one in log.events if one.place in places} - {*log_events.ECHOES}
    yield from (_line(one, "reported", OWN) for one in log.of(*kinds))


def _heard(log: Log, known: set[int]) -> Iterator[Row]:
    """What ranks whose end no line tells wrote about the failure of another one."""
    for one in log.of(*log_events.ECHOES):
        if one.rank not in known and (one.rank is not None or not known):
            yield _line(one, HEARD.get(one.pattern, CONNECTION_LOST), ECHO)


def _line(one: LogEvent, what: str, stage: int) -> Row:
    return Row(
        stage=stage,
        numbers=() if one.rank is None else (one.rank,),
        host=one.host,
        what=what,
        doing=one.values.get("operation", "").lower(),
        message=short(one.text),
        place=one.place,
    )


def _silent(log: Log, known: set[int]) -> Iterator[Row]:
    """The last lines of the ranks of which no line tells how they ended."""
    for one in sorted(log.last, key=lambda one: one.rank):
        if one.rank not in known:
            yield Row(
                stage=OTHER,
                numbers=(one.rank,),
                what="no end in the log, last line",
                message=short(one.text),
                place=one.place,
            )
