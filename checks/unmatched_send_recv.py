"""A send and a receive do not match, so the ranks wait for each other.

A rank that receives waits until the rank that it names sends, with the same tag and in the same
group. A rank that sends may wait until the other receives: gloo always does, NCCL does with
anything large. Two ranks that both send first wait forever, and so do two that both receive first,
or that name other ranks, tags or numbers of messages. Pipelines and rings are often written so.

Symptoms: all ranks wait, and at least one of them in send or recv.

To fix it, start both directions at once with ``batch_isend_irecv``, or let every second rank
receive first.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.hung_run import seen_live
from ddoctor.analysis.live_ranks import at_places, named, places, stack, standing
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    rows = live.unmatched
    if not rows:
        return
    apart = places(live.ranks)
    yield Finding(
        severity=Severity.ERROR,
        # Of one that sends and one that receives, the network may transfer nothing.
        confidence=Confidence.CERTAIN if _alike(live) else Confidence.LIKELY,
        because=f"{'; '.join(map(standing, apart.values()))}: {_why(live)}; {live.standstill}",
        evidence=at_places(*apart.values()),
        where=Where.of(rows) if len(rows) < len(live.ranks) else Where(),
        fixes=(
            Fix(
                summary="compare the other rank, the tag, the group and the number of messages",
                paste="\n\n".join(stack(ranks[0]) for ranks in list(apart.values())[:2]),
                language="text",
            ),
            *([_AT_ONCE] if _alike(live) else []),
        ),
    )


def in_a_hung_run(run: TrainingRun) -> Iterator[Finding]:
    if (live := seen_live(run)) is not None:
        yield from in_a_live_run(live)


def _alike(live: LiveState) -> bool:
    """Whether all ranks send, or all receive."""
    return len({rank.operation for rank in live.ranks}) == 1


def _why(live: LiveState) -> str:
    rows = live.unmatched
    others = [rank for rank in live.ranks if rank not in rows]
    if others:
        have = "have" if len(others) > 1 else "has"
        return f"{named(others)} {have} left the other end of that message out"
    if not _alike(live):
        return "what one sends is not what the other expects"
    sends = rows[0].operation == "send"
    return "each sends first, and none receives" if sends else "each receives, and none sends"


_AT_ONCE = Fix.python(
    summary="start both directions at once, in any order",
    paste=(
        "sent = dist.P2POp(dist.isend, mine, to)\n"
        "received = dist.P2POp(dist.irecv, theirs, source)\n"
        "for work in dist.batch_isend_irecv([sent, received]):\n"
        "    work.wait()"
    ),
)
