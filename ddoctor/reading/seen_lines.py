"""The lines of a log that match a pattern, while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddoctor.evidence import redaction
from ddoctor.evidence.log import LogEvent
from ddoctor.reading.excerpts import Around

LONGEST_TEXT = 1_000
"""Characters that are kept of a line."""
LONGEST_VALUE = 300


@dataclass
class SeenLine:
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
    around: Around | None = None

    def event(self) -> LogEvent:
        """The same without secrets."""
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
