"""Findings from messages that each tell a cause: ``knowledge/messages``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log, LogEvent, Message, Messages
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

Judge = Callable[[Log, Messages, TrainingRun | None], Iterator[Finding]]

NEAR = 20
"""Lines within which a line takes a message back if they have no part in common."""
MOST_BACK = 100
"""Lines of one kind that may take messages back, the last ones."""


def of_cause(cause: str) -> Judge:
    """The way of a check that finds its cause by these messages."""

    def message(log: Log, messages: Messages, run: TrainingRun | None) -> Iterator[Finding]:
        found = [
            _finding(row, events, log)
            for row in messages.of(cause)
            if (events := log.of(row.name))
            and not (row.of_victims and log_events.failed_otherwise(run, re.compile(row.text)))
        ]
        # Of those that are as bad and as sure, the first one of the table.
        if found:
            yield max(found, key=lambda one: (one.severity, one.confidence))

    return message


def _finding(row: Message, events: tuple[LogEvent, ...], log: Log) -> Finding:
    back = log.of(row.unless)[-MOST_BACK:] if row.unless else ()
    lasting = tuple(one for one in events if _taken_back(one, back) is None)
    shown = lasting or events
    finding = log_events.finding(
        shown,
        row.means.format_map(_Values(shown[0].values)),
        Fix(summary=row.fix, paste=row.paste, language=row.language),
        severity=Severity(row.severity),
        confidence=Confidence(row.confidence),
    )
    if row.until:
        last = Observation(name="last release that prints it", value=row.until, source=row.source)
        finding = replace(finding, evidence=(*finding.evidence, last))
    if lasting or (end := _taken_back(shown[0], back)) is None:
        return finding
    return replace(
        finding,
        because=f"{finding.because}; line {end.last} shows that it did no harm",
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
    )


def _taken_back(event: LogEvent, back: tuple[LogEvent, ...]) -> LogEvent | None:
    """A later line of the same writer that takes an event back."""
    for one in back:
        later = one.last - event.last
        if later > 0 and (one.file, one.rank, one.host) == (event.file, event.rank, event.host):
            common = one.values.keys() & event.values.keys()
            if all(one.values[name] == event.values[name] for name in common) and (
                common or later <= NEAR
            ):
                return one
    return None


class _Values(dict[str, str]):
    """What the text captures; a part that is not there."""

    def __missing__(self, key: str) -> str:
        return "?"
