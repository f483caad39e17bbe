"""Copies of batches to the GPU by the script itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ddoctor.recorder.tape import REST, TO_DEVICE
from ddoctor.recorder.timeline import Timeline


def install(timeline: Timeline) -> None:
    """Hook into the two ways to copy a tensor, once the model is known to be on a GPU."""
    tensor: Any = torch.Tensor
    for name in ("to", "cuda"):
        setattr(tensor, name, _timed(timeline, getattr(tensor, name)))


def _timed(timeline: Timeline, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Casts within the model are its own work, and what is on the GPU already stays there.
        outside = timeline.phase == REST and not torch.compiler.is_compiling()
        if not outside or self.is_cuda or not timeline.here():
            return original(self, *args, **kwargs)
        depth = len(timeline.open)
        timeline.enter(TO_DEVICE)
        try:
            return original(self, *args, **kwargs)
        finally:
            timeline.unwind(depth)

    return send
