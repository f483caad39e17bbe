"""The largest micro-batch, by trying every one of them under torch's own tracker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from tests.memory_sweep.workloads import Made


def largest(make: Callable[[], Made], limit: int, *, ranks: int) -> int:
    """Of which a step holds so many bytes at most; of several ranks each has DDP's buckets too."""
    model, optimizer, loss = make()
    buckets = sum(one.nbytes for one in model.parameters()) if ranks > 1 else 0

    def held(samples: int) -> int:
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            value = loss(model, samples)
            value.backward()  # type: ignore[no-untyped-call]
            del value
            optimizer.step()
            optimizer.zero_grad()
        return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]) + buckets

    held(1)  # the optimizer makes its states
    return next(samples for samples in count() if held(samples + 1) > limit)
