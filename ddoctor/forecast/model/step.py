"""One step of training on tensors that take no memory, and what it would have taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ddoctor.forecast.model.materials import as_fake, on_meta
from ddoctor.forecast.model.tracker import Tracker

# In the second step the optimizer has its states.
STEPS = 2

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What lies in memory at the peak of a step, in bytes."""

    parts: Mapping[str, int]
    """By torch's names: Parameter, Buffer, Gradient, Activation, Temp, Optstate, Other."""
    operators: int
    """What the operator at the peak has for itself."""
    phase: str
    """forward, backward or optimizer."""
    module: str
    """Whose operator is the last before the peak."""
    parameters: int
    """How many the model has."""
    trainable: int

    @property
    def total(self) -> int:
        """Bytes, as the allocator counts them."""
        return sum(self.parts.values()) + self.operators


def footprint(
    build: Callable[[], nn.Module],
    batch: Callable[[], Mapping[str, Tensor]],
    optimizer: Optimizer,
    *,
    autocast: torch.dtype | None = None,
) -> Footprint:
    """Of a step on CPU tensors, of a model whose forward pass returns its loss; ``autocast``: the
    dtype of computing, if that is another than the weights'."""
    model = on_meta(build)
    with FakeTensorMode():
        as_fake(model)
        trained = [one for one in model.parameters() if one.requires_grad]
        steps = optimizer(trained)
        samples = batch()
        tracker = Tracker(model)
        tracker.track_external(model, steps, *samples.values())
        with tracker:
            for _ in range(STEPS):
                tracker.phase = "forward"
                with _casting(autocast):
                    outputs = model(**samples)
                tracker.phase = "backward"
                outputs.loss.backward()
                # Most loops keep them until then: logits are not small.
                del outputs
                tracker.phase = "optimizer"
                steps.step()
                steps.zero_grad()
                tracker.reset_mod_stats()
        phase, module = tracker.moment
        return Footprint(
            parts=tracker.peak(),
            operators=tracker.beside,
            phase=phase,
            module=module,
            parameters=sum(one.numel() for one in model.parameters()),
            trainable=sum(one.numel() for one in trained),
        )


def _casting(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype) if dtype is not None else nullcontext()
