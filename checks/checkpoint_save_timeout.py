"""Saving a checkpoint takes so long that the others, who wait for it in a collective, time out.

Where one rank writes the whole state, or gathers it from all before, every other rank stands in the
next collective meanwhile. A slow or shared disk makes minutes of it, and the collective gives up
after ten of them (NCCL) or thirty (gloo): the run dies at a checkpoint, with an error on ranks that
did nothing but wait.

Seen from outside: the file grows slowly, all other ranks wait, and the timeout comes at each save.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import others
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import keeps_all_waiting, longer_limit
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("checkpoint-stall", "late-rank-timeout")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    found = live.straggler
    if (
        found is None
        or found.activity != "checkpoint"
        or not keeps_all_waiting(found.rank, live.ranks)
    ):
        return
    one = found.rank
    at = endings.at(found.line)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{one.who} has been saving{at} for all of the {one.seconds:.0f} s, "
            f"{one.seen.moved / one.seconds:.3g} MiB/s{others(live.ranks, [one])}, until that "
            "collective's limit is over"
        ),
        evidence=(
            Observation(
                name="read and written, by the rank that saves",
                value=round(one.seen.moved, 1),
                unit="MiB",
                source=f"in {one.seconds:.0f} s",
            ),
        ),
        where=Where(hosts=(one.host,), ranks=(one.rank,)),
        fixes=(
            Fix(
                summary="let all ranks write their parts, and train on meanwhile",
                paste=(
                    "import torch.distributed.checkpoint as dcp\n"
                    "\n"
                    'state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
                    'saved = dcp.async_save(state, checkpoint_id=f"checkpoints/{step}")'
                ),
                language="python",
                caution='on every rank; needs init_process_group("cpu:gloo,cuda:nccl")',
            ),
            Fix(
                summary=f"measure how fast {one.host} writes there",
                paste="df -h FOLDER; dd if=/dev/zero of=FOLDER/try bs=1M count=1024 conv=fsync",
            ),
            longer_limit(),
        ),
    )
