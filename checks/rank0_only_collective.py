"""Code that only one rank runs contains a collective, which all ranks must call.

``if rank == 0:`` around an evaluation, a log line or a save looks harmless, until the code inside
calls a collective: the state of a sharded model, a metric over all ranks, a barrier. The rank
inside waits for the other ranks, and they wait for it in the next collective.

Symptoms: a hang at the first evaluation or checkpoint; rank 0 is stuck in one collective, all other
ranks in another.

To fix it, move the collective out of the branch, and write the result on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis.live_ranks import (
    LiveRankState,
    asks_for_a_rank,
    named,
    way_there,
)
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import Block
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("rank-dependent-control-flow", "dead-rank", "first-failure-masked")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.blocked:
        return
    for block in {block for rank in live.ranks for block in rank.within}:
        inside = [rank for rank in live.ranks if block in rank.within]
        outside = [rank for rank in live.ranks if block not in rank.within]
        if asks_for_a_rank(block) and outside:
            yield _finding(block, inside, outside)


def _finding(
    block: Block, inside: Sequence[LiveRankState], outside: Sequence[LiveRankState]
) -> Finding:
    first, other = inside[0], outside[0]
    wait = "wait" if len(inside) > 1 else "waits"
    outside_wait = "wait" if len(outside) > 1 else "waits"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"{named(inside)} {wait} {first.where}, inside `{block.text}` (line {block.line}), "
            f"which {named(outside)} {'do' if len(outside) > 1 else 'does'} not run; "
            f"{named(outside)} {outside_wait} {other.where}; nothing moved for "
            f"{first.seconds:.0f} s"
        ),
        evidence=(
            Observation(name=named(inside), value=first.where),
            Observation(name=named(outside), value=other.where),
        ),
        where=Where.of(inside),
        fixes=(
            Fix(
                summary="call it on all ranks, and write the result on one of them",
                paste=(
                    "result = gather_or_evaluate()  # on all ranks: "
                    f"{first.operation or 'it'} needs them\n"
                    f"{block.text}\n"
                    "    save(result)"
                ),
                language="python",
            ),
            *way_there(first),
        ),
    )
