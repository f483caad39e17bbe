"""A run from its start to its end: where its time went, and what happened in it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from ddoctor.evidence.run_history import RankHistory, RunEvent, RunHistory
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES
from ddoctor.evidence.training import RankUse
from ddoctor.report.places import ranks
from ddoctor.report.step_breakdown import percent, unit
from ddoctor.report.wording import Grid, counted

START, END = "before the first step", "after the last step"
LOST = "lost to hangs"
EVENTS = 40
"""At most this many events are shown, the last ones."""
UNEVEN = 1.15
"""A rank is shown as slow from this multiple of the middle rank's time."""
MOST_RANKS = 64
HOUR = 3600.0
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
    rest waiting. What hangs took is no part of the phases.
    """
    hangs = _hangs(history)
    known = [rank for rank in history.ranks if rank.stretches]
    by_rank = [_phases(rank, hangs) for rank in known]
    transfer = min(phases["collective"] for phases in by_rank)
    parts: dict[str, float] = {}
    for phase in PHASES:
        if phase == "transfer":
            parts[phase] = transfer
        elif phase == "waiting":
            parts[phase] = fmean(phases["collective"] for phases in by_rank) - transfer
        else:
            parts[phase] = fmean(phases[phase] for phases in by_rank)
    begin = fmean(rank.stretches[0].begin for rank in known)
    parts[START] = begin - _overlap(hangs, 0.0, begin)
    last = known[0].stretches[-1]
    end = last.begin + last.seconds
    parts[END] = history.seconds - end - _overlap(hangs, end, history.seconds)
    parts[LOST] = _overlap(hangs, 0.0, history.seconds)
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def _hangs(history: RunHistory) -> list[tuple[float, float]]:
    """Begin and end of each hang, in seconds since the start; one without an end lasts to that."""
    found: list[tuple[float, float]] = []
    for event in history.events:
        if event.event == "hung":
            begin = max(0.0, event.seconds - (event.lost_seconds or 0.0))
            found.append((begin, history.seconds))
        elif event.event == "resumed" and found:
            found[-1] = (found[-1][0], event.seconds)
    return found


def _overlap(hangs: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in hangs)


def _phases(rank: RankHistory, hangs: Sequence[tuple[float, float]]) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for stretch in rank.stretches:
        own = {phase: share * stretch.seconds for phase, share in stretch.phases.items()}
        if own:
            # A rank hangs in one phase, which then is the longest.
            longest = max(own, key=lambda phase: own[phase])
            lost = _overlap(hangs, stretch.begin, stretch.begin + stretch.seconds)
            own[longest] = max(0.0, own[longest] - lost)
        for phase, each in own.items():
            seconds[phase] += each
    return seconds


def events(history: RunHistory, evidence: Evidence) -> Grid:
    """Return a row for each event; of many, the last ones."""
    told = [event for event in history.events if event.event != "ended"]
    uses = (flags.device_name for use in evidence.all(RankUse) for flags in use.flags)
    hours = f"{'GPU' if any(uses) else 'rank'} hours"

    def row(event: RunEvent) -> tuple[str, ...]:
        lost = event.lost_seconds
        of_all = (lost or 0.0) * len(history.ranks) / HOUR
        return (
            clock(event.seconds),
            f"{event.step:,}",
            _what(event),
            ranks(event.ranks) if event.ranks else "",
            f"{clock(lost)}, {of_all:.3g}{NO_BREAK}{hours}" if lost else "",
            event.title,
        )

    return Grid(
        title="what happened",
        head=HEAD,
        rows=tuple(map(row, told[-EVENTS:])),
    ).without_empty_columns()


@dataclass(frozen=True, kw_only=True)
class Uneven:
    """Which rank needed longer than the others for its own work, and when."""

    edges: tuple[float, ...]
    """Seconds since the start of the script at which a stretch begins, and the last one ends."""
    ranks: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]
    """Of each rank and stretch: its own time of a step, as a multiple of the middle rank's."""


def uneven(history: RunHistory) -> Uneven | None:
    """Return what each rank needed for its own work; None: all needed about the same.

    A step takes as long on each rank, so its time in collectives is left out. Of many ranks, those
    that were ever the slowest are returned.
    """
    known = [rank for rank in history.ranks if rank.stretches]
    if len(known) < 2:
        return None
    stretches = known[0].stretches
    middles = [(one.first + one.last) // 2 for one in stretches]
    own = {rank.rank: [_own(rank, step) for step in middles] for rank in known}
    usual = [median_low(column) or 1.0 for column in zip(*own.values(), strict=True)]
    shares = {
        rank: tuple(one / middle for one, middle in zip(row, usual, strict=True))
        for rank, row in own.items()
    }
    slowest = sorted(shares, key=lambda rank: -max(shares[rank]))
    if max(shares[slowest[0]]) < UNEVEN:
        return None
    shown = tuple(sorted(slowest[:MOST_RANKS]))
    return Uneven(
        edges=(*(one.begin for one in stretches), stretches[-1].begin + stretches[-1].seconds),
        ranks=shown,
        shares=tuple(shares[rank] for rank in shown),
    )


def _own(rank: RankHistory, step: int) -> float:
    """Return seconds of a step about this one that the rank did not spend in collectives."""
    place = bisect_right(rank.stretches, step, key=lambda one: one.first) - 1
    one = rank.stretches[max(0, place)]
    steps = max(1, one.last - one.first + 1)
    return one.seconds / steps * (1 - one.phases.get("collective", 0.0))


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
