"""What logs of a run say: the lines that match a row of ``knowledge/log_patterns.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ddoctor.evidence.section import Count, Known, Part, Section


class LogEvent(Part, frozen=True, kw_only=True):
    """A line that matches a pattern, with its repetitions on the same rank and host."""

    pattern: str
    """Its name in the table."""
    text: str
    """The first such line, without the prefix of its rank."""
    file: str
    line: int
    """Number of the line in the file, from 1; 0: it is not known."""
    rank: int | None = None
    """None: the line does not say it."""
    host: str = ""
    values: Mapping[str, str] = {}
    """What the pattern captures."""
    count: int = 1
    last: int = 0
    """Number of the last such line."""

    @property
    def place(self) -> str:
        """File and line, such as ``train.log:120``."""
        if self.file and self.line:
            return f"{self.file}:{self.line}"
        return self.file or f"line {self.line}"

    @property
    def who(self) -> str:
        """The rank or the host that wrote it; empty: not known."""
        parts = [f"rank {self.rank}"] if self.rank is not None else []
        return " on ".join([*parts, *([self.host] if self.host else [])])


class Excerpt(Part, frozen=True, kw_only=True):
    """A few lines of a file around one that tells what happened."""

    file: str
    line: int
    """Number of the line that tells it."""
    first: int
    """Number of the first of these lines."""
    lines: tuple[str, ...]
    time: float | None = None
    """Seconds since 1970 by its time stamp, or the last one before it. A stamp without a zone
    counts as UTC. None: there is none."""
    zoned: bool = False
    """Whether that stamp has a time zone."""

    @property
    def place(self) -> str:
        """File and line, such as ``train.log:120``."""
        return f"{self.file}:{self.line}"


class LastLine(Part, frozen=True, kw_only=True):
    """What a rank wrote last."""

    rank: int
    text: str
    """Without the prefix of its rank."""
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line, such as ``train.log:120``."""
        return f"{self.file}:{self.line}"


class Log(Section, frozen=True, kw_only=True):
    """All logs of one run, read as one."""

    commands = ("diagnose", "attach", "run")
    obtained_by = "ddoctor diagnose LOG"

    files: tuple[str, ...]
    lines: int
    ranks: Count = 0
    """Number of ranks that the lines name; 0: none."""
    several_hosts: bool = False
    """Whether its lines come from more than one host."""
    events: tuple[LogEvent, ...] = ()
    """In the order of their lines; files in the order of their names."""
    excerpts: tuple[Excerpt, ...] = ()
    """Around each exception, and the first events of each pattern."""
    last: tuple[LastLine, ...] = ()
    """What each rank wrote last, as far as the last lines of the files show it."""

    def of(self, *patterns: str) -> tuple[LogEvent, ...]:
        """The events of these patterns, in the order of their lines."""
        return tuple(one for one in self.events if one.pattern in patterns)

    def first(self, *patterns: str) -> LogEvent | None:
        """The first event of these patterns."""
        return next(iter(self.of(*patterns)), None)


class LineText(Part, frozen=True, kw_only=True):
    """The text of a line that means something."""

    name: str
    text: str
    """A regular expression, searched for in a line without the prefix of its rank. Its time is
    linear in the length of the line: no repetition within a repetition."""
    holds: tuple[str, ...]
    """Texts in lower case, of which each such line contains one: a fast test beforehand."""
    source: str
    since: str = ""
    """The first minor release of the source's package that prints it, of those for which there is a
    wheel (`tools/text_versions.py`); empty: not known."""
    until: str = ""
    """The last one; empty: the newest that was looked at, or not known."""

    @property
    def more(self) -> int:
        """How many of the following lines belong to it."""
        return 0

    @property
    def latest(self) -> bool:
        """Whether of several such lines the last one counts."""
        return False

    @property
    def few(self) -> bool:
        """Whether the first of many such lines of a file say as much as all."""
        return False


class LogPattern(LineText, frozen=True, kw_only=True):
    """A text whose meaning is up to the checks that ask for it."""

    more: int = 0
    """How many of the following lines belong to it, joined by blanks."""
    latest: bool = False
    """Whether of several such lines the last one counts, as of a bar of progress."""
    few: bool = False
    """Whether the first of many such lines of a file say as much as all."""


class LogPatterns(Known, frozen=True, kw_only=True):
    """The lines that mean something."""

    table = "log_patterns.toml"

    patterns: tuple[LogPattern, ...]


class Message(LineText, frozen=True, kw_only=True):
    """A text that tells its cause by itself, wherever it stands, in the words of the source that
    prints it. A text that says only that something else failed has no row."""

    cause: str
    means: str
    """Why it has that cause; ``{name}`` stands for what the text captures."""
    fix: str
    paste: str
    language: Literal["sh", "python", "text"] = "sh"
    confidence: Literal["possible", "likely", "certain"] = "likely"
    severity: Literal["note", "warning", "error"] = "error"
    example: str
    """Lines that hold it, from the format string of what prints it; a test diagnoses them."""
    of_victims: bool = False
    """Whether other ranks write it as well once one of them has failed."""
    unless: str = ""
    """The `LogPattern` of a later line that takes it back, which makes it a note. Where both
    capture a part of the same name, it is the same; else the lines are near each other."""


class Messages(Known, frozen=True, kw_only=True):
    """The messages of torch, NCCL, the kernel and others that each tell a cause."""

    table = "messages"

    messages: tuple[Message, ...]

    def of(self, cause: str) -> tuple[Message, ...]:
        """The messages of this cause."""
        return tuple(one for one in self.messages if one.cause == cause)
