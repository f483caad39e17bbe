"""What the ranks exchange of a model without a wrapper: parts of it, or now and then all of it."""

from __future__ import annotations

from ddoctor.evidence.wrapping import CollectiveCalls, Wrapper

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
