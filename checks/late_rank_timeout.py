"""One rank works for long while all the others wait in a collective, which has a limit.

Tokenising a dataset, listing millions of files, compiling: done by one rank, or by one for longer
than by the others, it is no mistake and moves on. But the others wait for it in a collective, and
that gives up after ten minutes (NCCL) or thirty (gloo), with an error on the ranks that did nothing
but wait.

Seen from outside: a timeout at the first barrier or the first step, always after the same time.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import named, others, way_there
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import keeps_all_waiting, longer_limit, waits
from ddoctor.models import Confidence, Finding, Fix, Severity, Where

EXPLAINS = ("straggler-rank", "rank0-extra-work", "rank-missing-at-init")

# To read and to import takes the same on all ranks, and ends by itself.
STARTING = ("import", "loader-start")
# What else one does alone for long is told as what it is.
OTHER_CAUSES = ("loader", "checkpoint")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    found = live.straggler
    if found is None or found.in_model or found.activity.startswith((*STARTING, *OTHER_CAUSES)):
        return
    rank, rest = found.rank, [row for row in live.ranks if row is not found.rank]
    if not keeps_all_waiting(rank, live.ranks) or not rank.works:
        return
    at = endings.at(found.line)
    text = endings.quoted(found.line)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{rank.who} works{at}{text} for all of the {rank.seconds:.0f} s"
            f"{others(live.ranks, [rank])}, until that collective's limit is over"
        ),
        evidence=waits(live.ranks),
        where=Where(hosts=(rank.host,), ranks=(rank.rank,)),
        fixes=(
            Fix(
                summary=f"do it before the run, once, so that {named(rest)} need not wait",
                paste="python prepare.py  # what that line computes, written to a file",
                caution="or on every rank its own part, each with a file of its own",
            ),
            longer_limit(),
            *(way_there(rank, found.calls) if found.calls else ()),
        ),
    )
