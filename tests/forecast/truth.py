"""What a step really takes on a CPU: by the allocator's own events, whatever forecasts it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from ddoctor.evidence.plan import Checkpointing
from ddoctor.forecast.model.blueprint import Batch
from ddoctor.forecast.model.recomputing import recompute
from ddoctor.forecast.model.sharding import Sharding, apart, shard

MEMORY = "[memory]"
STEPS = 3
needs_known_bfloat16 = pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
    reason="how oneDNN computes in bfloat16 on this CPU has not been looked at",
)


def peak(
    build: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    autocast: torch.dtype | None = None,
    *,
    sharding: Sharding | None = None,
    checkpointing: Checkpointing = "none",
    accumulation: int = 1,
    replicated: bool = False,
    evaluation: Callable[[], Batch] | None = None,
) -> int:
    """Bytes, from the second step on.

    FSDP is the real one, on tensors that are there; but the ranks exchange nothing, as gloo copies
    what it sends, which NCCL does not. DDP (``replicated``) is alone.
    """
    # What is freed while it is recorded, and was made before, would count as less.
    gc.collect()
    with (
        apart(sharding) as mesh,
        alone() if replicated else nullcontext(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded,
    ):
        model = build().train()
        samples = batch()
        evaluated = evaluation() if evaluation is not None else None
        recompute(model, checkpointing)
        if sharding is not None and mesh is not None:
            shard(model, sharding, mesh)
        if replicated:
            # gloo's threads would free what they had last, which the profiler does not see.
            model = DistributedDataParallel(model, init_sync=False)
            model.register_comm_hook(None, lambda _, bucket: _unsent(bucket.buffer()))
        steps = optimizer([one for one in model.parameters() if one.requires_grad])
        for number in range(STEPS):
            with record_function(f"step {number}"):
                for _ in range(accumulation):
                    with torch.autocast("cpu", autocast, enabled=autocast is not None):
                        outputs = model(**samples)
                    outputs.loss.backward()
                    del outputs
                steps.step()
                steps.zero_grad()
                if evaluated is not None:
                    model.eval()
                    with torch.no_grad(), torch.autocast("cpu", autocast, enabled=bool(autocast)):
                        outputs = model(**evaluated)
                    del outputs
                    model.train()
    events = recorded.profiler.kineto_results.events()
    begins = min(one.start_ns() for one in events if one.name() == "step 1")
    held = most = 0
    for moment, size in _changes(recorded):
        held += size
        if moment >= begins:
            most = max(most, held)
    return most


def _unsent(gradients: Tensor) -> torch.futures.Future[Tensor]:
    sent = torch.futures.Future[Tensor]()
    sent.set_result(gradients)
    return sent


@contextmanager
def alone() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def beside(call: Callable[[], object]) -> int:
    """Bytes that a call has at its peak, beside what it returns."""
    call()  # what it makes once, it has by now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        returned = call()
    held = most = 0
    for _, size in _changes(recorded):
        held += size
        most = max(most, held)
    del returned
    return most - held


def _changes(recorded: Any) -> list[tuple[int, int]]:
    events = recorded.profiler.kineto_results.events()
    return sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == MEMORY)
