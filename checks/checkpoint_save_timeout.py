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
            f"{one.who} saved a checkpoint{at} for all of the {one.seconds:.0f} s, at "
            f"{one.seen.moved / one.seconds:.3g} MiB/s{others(live.ranks, [one])}, until that "
            "collective times out"
        ),
        evidence=(
            Observation(
                name="read and written by the saving rank",
                value=round(one.seen.moved, 1),
                unit="MiB",
                source=f"in {one.seconds:.0f} s",
            ),
        ),
        where=Where(hosts=(one.host,), ranks=(one.rank,)),
        fixes=(
            Fix(
                summary="save on all ranks, each its own part, and asynchronously",
                paste=(
                    "import torch.distributed.checkpoint as dcp\n"
                    "\n"
                    'state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
                    'saved = dcp.async_save(state, checkpoint_id=f"checkpoints/{step}")'
                ),
                language="python",
                caution='call it on every rank; needs init_process_group("cpu:gloo,cuda:nccl")',
            ),
            Fix(
                summary=f"measure the write speed of {one.host} to that folder",
                paste="df -h FOLDER; dd if=/dev/zero of=FOLDER/try bs=1M count=1024 conv=fsync",
            ),
            longer_limit(),
        ),
    )
