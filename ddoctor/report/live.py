"""A live run: what each rank was doing, who waits for whom, and the flame graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ddoctor.analysis import endings, live_time
from ddoctor.analysis.live_ranks import LiveRankState, named, phase, places
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES
from ddoctor.report.host_load import host_load
from ddoctor.report.step_breakdown import Slice
from ddoctor.report.wording import Grid, counted

# Shares of the sampled time below this are left out.
NOTABLE = 0.1
MOST_SHARES = 3
# More ranks than these share their rows.
MOST_ROWS = 16
LONGEST_NAMES = 40


# A box of the flame graph that is narrower than this is only a line.
THINNEST = 0.01


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
    slices: tuple[Slice, ...]
    """Its time by phase, in the order of PHASES; empty: it is stuck."""
    turns: tuple[Slice, ...]
    """The timeline of the first rank."""

    @property
    def cells(self) -> tuple[str, str, str]:
        """Return its row in a table of texts."""
        return self.rank, self.doing, self.state


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
    first = rows[0]
    means = {name: fmean(one.shares.get(name, 0.0) for one in rows) for name in PHASES}
    turns = ((phase(turn.name), turn.samples / first.seen.samples) for turn in first.seen.turns)
    return LiveRow(
        rank=rank,
        first=first.rank,
        doing=doing,
        state=_state(rows),
        slices=() if first.stands else _slices(means.items(), first.seconds),
        turns=_slices(turns, first.seconds),
    )


def _slices(shares: Iterable[tuple[str, float]], seconds: float) -> tuple[Slice, ...]:
    return tuple(
        Slice(phase=name, seconds=share * seconds, share=share) for name, share in shares if share
    )


def _names(rows: Sequence[LiveRankState]) -> str:
    names = named(rows)
    return names if len(names) <= LONGEST_NAMES else f"{len(rows)} ranks"


def seen(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the report's head."""
    looks = evidence.all(LiveLook)
    if not looks:
        return
    live = LiveState.derive(looks)
    if live.dumped:
        yield "stacks", f"dumped of {counted(len(live.ranks), 'rank')}"
        return
    yield "run", f"{' '.join(looks[0].command)} ({looks[0].job})"
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
        return one.where if one.dumped else f"stuck {one.where}"
    told = [
        f"{'waiting for others' if name == 'waiting' else name} {share:.0%}"
        for name, share in sorted(one.shares.items(), key=lambda item: -item[1])
        if share >= NOTABLE
    ]
    return ", ".join(told[:MOST_SHARES])


def _state(rows: Sequence[LiveRankState]) -> str:
    held = {one.seen.state for one in rows if one.held or one.dumped}
    if held:
        return " or ".join(sorted(held))
    busy = [min(one.seen.main_cpu_seconds / one.seconds, 1.0) for one in rows if one.seconds]
    low, high = f"{min(busy, default=0.0):.0%}", f"{max(busy, default=0.0):.0%}"
    return f"{low}{f' to {high}' if low != high else ''} on a CPU"


def time(evidence: Evidence) -> Grid:
    """Return where the time of a run goes that moves: how much, on what, at which line, where."""
    looks = evidence.all(LiveLook)
    live = LiveState.derive(looks) if looks else None
    found = live_time.spent(live) if live is not None else ()
    rows = tuple(
        (
            f"{row.share:.0%}",
            "waiting for each other, or for the network" if row.phase == "waiting" else row.phase,
            "all ranks" if live is not None and len(row.ranks) == live.world else _names(row.ranks),
            endings.place(row.line) + endings.quoted(row.line),
        )
        for row in found
    )
    return Grid(head=("time", "spent on", "by", "at"), rows=rows, title="where the time goes")


def waits(evidence: Evidence) -> Grid:
    """Return who waits for whom, down to the rank or worker that blocks the others."""
    live = LiveState.derive(evidence.all(LiveLook))
    found = live.straggler
    rows: Iterable[tuple[str, str, str, str]] = ()
    if live.hung:
        rows = _stuck(live)
    elif found is not None:
        others = named([rank for rank in live.ranks if rank is not found.rank])
        activity = f"mostly in {found.activity}{endings.at(found.line)}"
        rows = [(others, f"{found.lost:.0%} of the time", named([found.rank]), activity)]
    return Grid(head=("waits", "where", "for", "activity"), rows=tuple(rows))


def _stuck(live: LiveState) -> Iterator[tuple[str, str, str, str]]:
    apart = [rank for rank in live.ranks if not rank.waits]
    groups = places(rank for rank in live.ranks if rank.waits)
    for where, rows in groups.items():
        if apart:
            whom, doing = named(apart), "stuck " + " or ".join(places(apart))
        elif live.gone:
            whom, doing = endings.ranks(one.rank for one in live.gone), "no longer running"
        elif len(groups) > 1:
            others = [rank for rank in live.ranks if rank.waits and rank not in rows]
            whom, doing = named(others), "waiting " + " or ".join(places(others))
        else:
            continue
        yield named(rows), where, whom, doing
    for one in apart:
        for worker in one.seen.workers:
            if one.doing == "loader-wait" and worker.stuck:
                whom = f"its worker (pid {worker.pid})"
                yield named([one]), one.where, whom, f"stuck{endings.at(worker.line)}"


@dataclass
class Box:
    """A box of the flame graph: a line of the user's code, or the activity there."""

    what: Frame | str = ""
    """The line that called another one, or the name of the activity."""
    share: float = 0.0
    """Share of the time of all ranks, 0 to 1."""
    seen_on: set[int] = field(default_factory=set)
    """The ranks that were sampled there."""
    calls: dict[Frame | str, Box] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the place of the line, or the activity."""
        return self.what if isinstance(self.what, str) else endings.place(self.what)

    @property
    def text(self) -> str:
        """Return the line itself."""
        return "" if isinstance(self.what, str) else self.what.text

    @property
    def phase(self) -> str:
        """Return the phase of the activity; empty: a line that called another one."""
        return phase(self.what) if isinstance(self.what, str) else ""

    @property
    def inside(self) -> tuple[Box, ...]:
        """Return the boxes below it, the widest first."""
        wide = (box for box in self.calls.values() if box.share >= THINNEST)
        return tuple(sorted(wide, key=lambda box: -box.share))


def flame(evidence: Evidence) -> Box:
    """Return the stacks of all ranks merged: a box around all others."""
    every = [one for one in LiveState.derive(evidence.all(LiveLook)).ranks if one.seen.samples]
    root = Box()
    for one in every:
        root.seen_on.add(one.rank)
        for met in one.seen.activities:
            box = root
            way: tuple[Frame | str, ...] = (*met.calls, met.name)
            for step in way:
                box = box.calls.setdefault(step, Box(what=step))
                box.share += met.samples / one.seen.samples / len(every)
                box.seen_on.add(one.rank)
    return root
