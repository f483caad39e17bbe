"""Counts the blocks that torch.utils.checkpoint will recompute."""

from __future__ import annotations

from functools import wraps
from threading import get_ident
from typing import Any

from torch.utils import checkpoint

from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.tape import COUNT, FORWARD
from ddoctor.recorder.timeline import Timeline

CHECKPOINTED = COUNT["checkpointed"]


@harmless
def install(timeline: Timeline) -> None:
    """Hook into its two implementations, and not into ``checkpoint``, which ``compile`` recognises
    by name."""
    frame: Any = checkpoint._CheckpointFrame
    function: Any = checkpoint.CheckpointFunction
    begin, forward = frame.__init__, function.forward

    def count() -> None:
        # Within a backward pass a block is already computed again, and may hold others.
        if timeline.phase == FORWARD and get_ident() == timeline.busy:
            timeline.counts[CHECKPOINTED] += 1

    @wraps(begin)
    def counted_begin(*args: Any, **kwargs: Any) -> None:
        count()
        begin(*args, **kwargs)

    @wraps(forward)
    def counted_forward(*args: Any, **kwargs: Any) -> Any:
        count()
        return forward(*args, **kwargs)

    timeline.swaps.put(frame, "__init__", counted_begin)
    timeline.swaps.put(function, "forward", staticmethod(counted_forward))
