"""Logs with events, for checks that read them."""

from __future__ import annotations

from ddoctor.evidence.log import Log, LogEvent


def event(pattern: str, *, text: str = "", rank: int | None = None, **values: str) -> LogEvent:
    """An event at line 7 of train.log."""
    return LogEvent(
        pattern=pattern,
        text=text or pattern,
        file="train.log",
        line=7,
        rank=rank,
        host=values.pop("host", ""),
        values=values,
    )


def logged(*events: LogEvent) -> Log:
    """A log of one host with these events."""
    return Log(files=("train.log",), lines=100, events=events)
