"""Saving a checkpoint takes so long that the waiting ranks run into the collective timeout.

One rank writes the whole state, or gathers it from all ranks first. Every other rank waits in the
next collective meanwhile. On a slow or shared disk this takes minutes. The collective times out
after ten minutes (NCCL) or thirty (gloo), so the run dies at a checkpoint, with an error on ranks
that only waited.

Symptoms: the checkpoint file grows slowly, all other ranks wait, and the timeout comes at each
save.

To fix it, save on all ranks and asynchronously (``torch.distributed.checkpoint``), write to a
faster disk, or raise the timeout.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import longer_limit, save_asynchronously
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("checkpoint-stall", "late-rank-timeout", "first-failure-masked")
# Between the line about saving and the timeout: ranks print little while they wait.
FEW_LINES = 200


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    found = live.straggler
    if found is None or found.activity != "checkpoint" or not found.never_arrives:
        return
    one = found.rank
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{one.who} saved a checkpoint{endings.at(found.line)} for all of the "
            f"{one.seconds:.0f} s, at {one.seen.moved / one.seconds:.3g} MiB/s"
            f"{live.others([one])}, until that collective times out"
        ),
        evidence=(
            Observation(
                name="read and written by the saving rank",
                value=round(one.seen.moved, 1),
                unit="MiB",
                source=f"in {one.seconds:.0f} s",
            ),
        ),
        where=Where.of([one]),
        fixes=(
            save_asynchronously(),
            Fix(
                summary=f"measure the write speed of {one.host} to that folder",
                paste="df -h FOLDER; dd if=/dev/zero of=FOLDER/try bs=1M count=1024 conv=fsync",
            ),
            longer_limit(),
        ),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    saving, late = log.of("saving"), log.of("watchdog", "store-wait")
    if saving and late and saving[-1].last >= late[0].line - FEW_LINES:
        yield log_events.finding(
            [*late, *saving],
            f"the ranks waited while a checkpoint was saved ({saving[-1].place})",
            save_asynchronously(),
            longer_limit(),
            confidence=Confidence.POSSIBLE,
        )
