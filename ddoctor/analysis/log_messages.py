"""Findings from messages that each tell a cause: ``knowledge/messages``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log, LogEvent, Message, Messages
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity

Judge = Callable[[Log, Messages, TrainingRun | None], Iterator[Finding]]


def of_cause(cause: str) -> Judge:
    """The way of a check that finds its cause by these messages."""

    def message(log: Log, messages: Messages, run: TrainingRun | None) -> Iterator[Finding]:
        for row in messages.of(cause):
            events = log.of(row.name)
            if events and not (
                row.of_victims and log_events.failed_otherwise(run, re.compile(row.text))
            ):
                yield _finding(row, events)
                return

    return message


def _finding(row: Message, events: tuple[LogEvent, ...]) -> Finding:
    return log_events.finding(
        events,
        row.means.format_map(_Values(events[0].values)),
        Fix(summary=row.fix, paste=row.paste, language=row.language),
        severity=Severity(row.severity),
        confidence=Confidence(row.confidence),
    )


class _Values(dict[str, str]):
    """What the text captures; a part that is not there."""

    def __missing__(self, key: str) -> str:
        return "?"
