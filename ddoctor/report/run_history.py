"""A run from its start to its end: where its time went, and what happened in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

from ddoctor.evidence.run_history import RankHistory, RunEvent, RunHistory
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES
from ddoctor.report.places import ranks
from ddoctor.report.step_breakdown import percent, unit
from ddoctor.report.wording import Grid, counted

START, END = "before the first step", "after the last step"
EVENTS = 40
"""At most this many events are shown, the last ones."""
NO_BREAK = "\N{NO-BREAK SPACE}"
HEAD = ("at", "step", "what", "where", "cost", "why")


def histories(evidence: Evidence) -> Iterator[RunHistory]:
    """Yield the history of the run, if it was followed to its end and took steps."""
    for history in evidence.all(RunHistory):
        if any(rank.stretches for rank in history.ranks):
            yield history


def rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of the lines of the report's head."""
    for history in histories(evidence):
        yield "whole run", f"{clock(history.seconds)}, {counted(history.steps, 'step')}"
        parts = spent(history)
        whole = sum(parts.values())
        told = [
            f"{percent(seconds / whole)} {name}"
            for name, seconds in sorted(parts.items(), key=lambda one: -one[1])
            if seconds >= whole / 200
        ]
        yield "its time", ", ".join(told)


def spent(history: RunHistory) -> dict[str, float]:
    """Return seconds by phase from start to end, the mean of the ranks.

    Of the time in collectives, what the rank with the least of it spends is the transfer, and the
    rest waiting.
    """
    known = [rank for rank in history.ranks if rank.stretches]
    by_rank = [_phases(rank) for rank in known]
    transfer = min(phases["collective"] for phases in by_rank)
    parts: dict[str, float] = {}
    for phase in PHASES:
        if phase == "transfer":
            parts[phase] = transfer
        elif phase == "waiting":
            parts[phase] = fmean(phases["collective"] for phases in by_rank) - transfer
        else:
            parts[phase] = fmean(phases[phase] for phases in by_rank)
    parts[START] = fmean(rank.stretches[0].begin for rank in known)
    last = known[0].stretches[-1]
    parts[END] = history.seconds - last.begin - last.seconds
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def _phases(rank: RankHistory) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for stretch in rank.stretches:
        for phase, share in stretch.phases.items():
            seconds[phase] += share * stretch.seconds
    return seconds


def events(history: RunHistory) -> Grid:
    """Return a row for each event; of many, the last ones."""
    told = [event for event in history.events if event.event != "ended"]
    return Grid(
        title="what happened",
        head=HEAD,
        rows=tuple(_row(event) for event in told[-EVENTS:]),
    ).without_empty_columns()


def _row(event: RunEvent) -> tuple[str, ...]:
    cost = event.lost_seconds
    return (
        clock(event.seconds),
        f"{event.step:,}",
        _what(event),
        ranks(event.ranks) if event.ranks else "",
        clock(cost) if cost else "",
        event.title,
    )


def _what(event: RunEvent) -> str:
    if event.event == "slower" and event.before and event.after:
        took, takes = (unit(one)(one) for one in (event.before, event.after))
        return f"slower: {took} → {takes}, {event.phase}"
    return {"cause": "why it is slower", "hung": "no progress", "resumed": "continues"}.get(
        event.event, event.event
    )


def clock(seconds: float) -> str:
    """Return a duration, say ``41.2 s``, ``12 min 5 s`` or ``3 h 7 min``."""
    if seconds < 60:
        return f"{seconds:.1f}{NO_BREAK}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{NO_BREAK}min {rest}{NO_BREAK}s"
    return f"{minutes // 60:,}{NO_BREAK}h {minutes % 60}{NO_BREAK}min"
