"""Who waits for whom in a live run: from the many to the one that it comes down to."""

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
    """Some ranks that stand at one place, and for whom."""

    who: str
    where: str
    whom: str
    doing: str
    """Where those are, and what they do."""


def waits(evidence: Evidence) -> tuple[LiveWait, ...]:
    """All that a look tells; none where the ranks keep pace."""
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
            doing=f"is mostly in {found.activity}{at}",
        ),
    )


def _stuck(live: LiveState) -> Iterator[LiveWait]:
    apart = [rank for rank in live.ranks if not rank.waits]
    groups = places(rank for rank in live.ranks if rank.waits)
    for where, rows in groups.items():
        if apart:
            whom, doing = named(apart), "stands " + " or ".join(places(apart))
        elif live.gone:
            whom, doing = endings.ranks(one.rank for one in live.gone), "is not there any more"
        elif len(groups) > 1:
            others = [rank for rank in live.ranks if rank.waits and rank not in rows]
            whom, doing = named(others), "waits " + " or ".join(places(others))
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
                doing=f"stands at {at}" if at else "stands",
            )
