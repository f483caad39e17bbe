"""A recorded run whose ranks missed each other, as ``ddoctor attach`` would have seen it."""

from __future__ import annotations

from dataclasses import replace

from ddoctor.analysis.collective_mismatch import mismatch
from ddoctor.analysis.live_ranks import IN_ENGINE
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import Activity, LiveLook, LiveRank
from ddoctor.evidence.steps import PHASES
from ddoctor.evidence.training import ENGINE, RankEnding, TrainingRun

UNKNOWN = "wait"
"""The recorder's word for a wait of which it did not see the begin."""


def seen_live(run: TrainingRun) -> LiveState | None:
    """Its ranks, if it hung and all that did not finish wait for others; None: else.

    A rank may have failed in its collective, once another rank was gone. Where gloo or NCCL meet
    tensors that do not fit, the ranks fail instead of hanging.
    """
    hung = [one for one in run.ranks if one.stood]
    differs = mismatch(run)
    apart = differs is not None and not differs.same_call
    finished = tuple(one.rank for one in run.ranks if one.outcome == "finished")
    waiting = tuple(
        _rank(one)
        for one in run.ranks
        if one.waits and (one in hung or one.echoes or (apart and one.fell))
    )
    if not (hung or apart) or len(waiting) + len(finished) < len(run.ranks):
        return None
    look = LiveLook(
        host=run.ranks[0].host,
        job="",
        world=len(run.ranks),
        seconds=max((one.stood_seconds for one in hung), default=0.0),
        command=run.command,
        missing=finished,
        supervised=True,
        ranks=waiting,
    )
    told = f"then {differs.told_by} met tensors that do not fit" if differs and not hung else ""
    return replace(LiveState.derive((look,)), ended=told)


def _rank(one: RankEnding) -> LiveRank:
    functions = [frame.function for frame in one.stack]
    # A collective that a sharded model calls in its backward pass is below the engine, too.
    last = functions[-1:] == [ENGINE]
    # What it has begun, and waits for, may have no frame of torch.
    begun = "" if one.doing in (*PHASES, UNKNOWN) else one.doing
    waits = Activity(
        name=IN_ENGINE if last else "collective",
        samples=1,
        calls=tuple(frame for frame in one.stack if frame.of_user),
        within=one.within,
        makes=begun.removeprefix("i") if begun in ("isend", "irecv") else begun,
    )
    return LiveRank(
        rank=one.rank,
        pid=one.pid,
        state="sleeping",
        age_seconds=one.time,
        cpu_seconds=0.0,
        main_cpu_seconds=0.0,
        resident=0.0,
        samples=1,
        stack=one.stack,
        still=True,
        activities=(waits,),
    )
