"""What a step really takes on a CPU: by the allocator's own events, whatever forecasts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

MEMORY = "[memory]"
STEPS = 3


def peak(
    build: Callable[[], nn.Module],
    batch: Callable[[], Mapping[str, Tensor]],
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    autocast: torch.dtype | None = None,
) -> int:
    """Bytes, from the second step on."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        model = build().train()
        samples = batch()
        steps = optimizer([one for one in model.parameters() if one.requires_grad])
        for number in range(STEPS):
            with record_function(f"step {number}"):
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    outputs = model(**samples)
                outputs.loss.backward()
                del outputs
                steps.step()
                steps.zero_grad()
    events: Any = recorded.profiler.kineto_results.events()
    begins = min(one.start_ns() for one in events if one.name() == "step 1")
    held = most = 0
    for moment, size in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == MEMORY):
        held += size
        if moment >= begins:
            most = max(most, held)
    return most
