"""What each rank of a live run was doing, as rows for all output formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddoctor.analysis.live_ranks import LiveRankState, named, phase
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES
from ddoctor.report.host_load import host_load
from ddoctor.report.step_breakdown import Slice

# Shares of the sampled time below this are left out.
NOTABLE = 0.1
MOST_SHARES = 3
# More ranks than these share their rows.
MOST_ROWS = 16
LONGEST_NAMES = 40


@dataclass(frozen=True, kw_only=True)
class LiveRow:
    """One rank, or several that do the same thing."""

    rank: str
    first: int
    """The number of its first rank."""
    doing: str
    """Where its main thread was sampled, and for which share of the time."""
    state: str
    """The state of its process."""
    slices: tuple[Slice, ...] = ()
    """Its time by phase, in the order of PHASES; empty: it is stuck."""
    turns: tuple[Slice, ...] = ()
    """The timeline of the first rank."""


def rows(evidence: Evidence) -> tuple[LiveRow, ...]:
    """Return the sampled ranks; many ranks are grouped by what they do."""
    live = LiveState.derive(evidence.all(LiveLook))
    if len(live.ranks) > MOST_ROWS:
        groups: dict[str, list[LiveRankState]] = {}
        for rank in live.ranks:
            groups.setdefault(_mostly(rank), []).append(rank)
        return tuple(_row(_names(rows), doing, rows) for doing, rows in groups.items())
    several = len(live.looks) > 1
    return tuple(
        _row(f"rank {one.rank}" + (f" on {one.host}" if several else ""), _doing(one), [one])
        for one in live.ranks
    )


def _row(rank: str, doing: str, rows: Sequence[LiveRankState]) -> LiveRow:
    return LiveRow(
        rank=rank,
        first=rows[0].rank,
        doing=doing,
        state=_state(rows),
        slices=() if rows[0].stands else _slices(rows),
        turns=tuple(_turns(rows[0])),
    )


def _turns(one: LiveRankState) -> Iterator[Slice]:
    for turn in one.seen.turns:
        share = turn.samples / one.seen.samples
        yield Slice(phase=phase(turn.name), seconds=share * one.seconds, share=share)


def _slices(rows: Sequence[LiveRankState]) -> tuple[Slice, ...]:
    """Return the mean shares of several ranks."""
    means = ((name, fmean(one.shares.get(name, 0.0) for one in rows)) for name in PHASES)
    seconds = rows[0].seconds
    return tuple(
        Slice(phase=name, seconds=share * seconds, share=share) for name, share in means if share
    )


def _names(rows: Sequence[LiveRankState]) -> str:
    told = named(rows)
    return told if len(told) <= LONGEST_NAMES else f"{len(rows)} ranks"


def seen(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the report's head."""
    looks = evidence.all(LiveLook)
    if not looks:
        return
    live = LiveState.derive(looks)
    yield "run", f"{' '.join(live.command)} ({live.job})"
    yield "sampled", f"{len(live.ranks)} of {live.world} ranks, for {live.seconds:.0f} s"
    if told := host_load(evidence):
        yield "meanwhile", told
    for one in live.gone:
        yield "gone", f"rank {one.rank} started on {one.host} and is no longer running"
    elsewhere = live.world - len(live.ranks) - len(live.gone)
    if elsewhere > 0:
        yield (
            "not sampled",
            f"{elsewhere} rank{'s' if elsewhere > 1 else ''} on other hosts: run `ddoctor attach "
            "--bundle FILE` there too, and pass all bundles to `ddoctor diagnose`",
        )


def _mostly(one: LiveRankState) -> str:
    if one.stands:
        return _doing(one)
    return f"mostly {one.doing}"


def _doing(one: LiveRankState) -> str:
    if one.seen.unseen:
        return one.seen.unseen
    if one.seen.still:
        return f"stuck {one.where}"
    told = [
        f"{'waiting for others' if name == 'waiting' else name} {share:.0%}"
        for name, share in sorted(one.shares.items(), key=lambda item: -item[1])
        if share >= NOTABLE
    ]
    return ", ".join(told[:MOST_SHARES])


def _state(rows: Sequence[LiveRankState]) -> str:
    held = {one.seen.state for one in rows if one.held}
    if held:
        return " or ".join(sorted(held))
    busy = [min(one.seen.main_cpu_seconds / one.seconds, 1.0) for one in rows if one.seconds]
    low, high = f"{min(busy, default=0.0):.0%}", f"{max(busy, default=0.0):.0%}"
    return f"{low}{f' to {high}' if low != high else ''} on a CPU"
