"""What the ranks exchange of a model without a wrapper: parts of it, or now and then all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddoctor.evidence.wrapping import CollectiveCalls, Wrapper, Wrapping

POINT_TO_POINT = ("send", "recv", "isend", "irecv")


def is_part(model: Wrapper, calls: CollectiveCalls | None) -> bool:
    """Whether each rank seems to compute a part of one model.

    Stages of a pipeline send and receive, and parts of layers meet in collectives of the forward
    pass. So does SyncBatchNorm, for which no model is split.
    """
    if model.kind != "none" or model.sync_batch_norms or calls is None:
        return False
    return in_stages(calls) or any(one.within == "forward" for one in calls.calls)


def in_stages(calls: CollectiveCalls | None) -> bool:
    """Whether ranks hand tensors on to each other, as the stages of a pipeline do."""
    return calls is not None and any(one.operation in POINT_TO_POINT for one in calls.calls)


def averaged_at_times(model: Wrapper, calls: CollectiveCalls | None) -> bool:
    """Whether some steps exchange the whole model, and others do not, as Local SGD does."""
    if calls is None:
        return False
    sent = sum(
        one.bytes / one.in_steps
        for one in calls.calls
        if one.rank == model.rank and one.in_steps and one.in_steps < calls.steps
    )
    return sent >= model.trainable_bytes > 0


def averaged(wrapping: Wrapping, calls: CollectiveCalls | None) -> bool:
    """Whether each step exchanges all gradients of a model that nothing wraps, outside of it."""
    if calls is None or not calls.steps:
        return False
    sent: Counter[int] = Counter()
    for one in calls.calls:
        sent[one.rank] += one.bytes if one.in_steps == calls.steps else 0
    models = [*_smallest(wrapping)]
    return bool(models) and all(
        sent[one.rank] >= calls.steps * one.trainable_bytes > 0 and not is_part(one, calls)
        for one in models
    )


def _smallest(wrapping: Wrapping) -> Iterator[Wrapper]:
    """Of each rank, the model with the fewest trained bytes."""
    for rank in {one.rank for one in wrapping.wrappers}:
        mine = (one for one in wrapping.wrappers if one.rank == rank)
        yield min(mine, key=lambda one: one.trainable_bytes)
