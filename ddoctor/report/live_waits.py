"""Who waits for whom in a live run, down to the rank or worker that blocks the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import named, places
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence


@dataclass(frozen=True, kw_only=True)
class LiveWait:
    """Some ranks that wait at one place, and the rank or worker they wait for."""

    who: str
    where: str
    whom: str
    doing: str
    """What those do, and where."""


def waits(evidence: Evidence) -> tuple[LiveWait, ...]:
    """Return all waits that the samples show; none if the ranks keep pace."""
    live = LiveState.derive(evidence.all(LiveLook))
    if live.hung:
        return tuple(_stuck(live))
    found = live.straggler
    if found is None:
        return ()
    at = f" at {endings.place(found.line)}" if found.line is not None else ""
    return (
        LiveWait(
            who=named([rank for rank in live.ranks if rank is not found.rank]),
            where=f"{found.lost:.0%} of the time",
            whom=named([found.rank]),
            doing=f"mostly in {found.activity}{at}",
        ),
    )


def _stuck(live: LiveState) -> Iterator[LiveWait]:
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
        yield LiveWait(who=named(rows), where=where, whom=whom, doing=doing)
    for one in apart:
        for worker in one.seen.workers:
            if one.doing != "loader-wait" or not worker.stuck:
                continue
            at = endings.place(worker.line)
            yield LiveWait(
                who=named([one]),
                where=one.where,
                whom=f"its worker (pid {worker.pid})",
                doing=f"stuck at {at}" if at else "stuck",
            )
