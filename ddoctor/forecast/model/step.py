"""One training step on fake tensors, and the memory that a real one would take."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Checkpointing
from ddoctor.forecast.allocator import replay
from ddoctor.forecast.model.blueprint import Batch
from ddoctor.forecast.model.fake_tensors import as_fake, on_meta
from ddoctor.forecast.model.packed_samples import unpacked
from ddoctor.forecast.model.recomputing import recompute
from ddoctor.forecast.model.sharding import ShardedModel, Sharding, apart, shard, units
from ddoctor.memory_tracking.cuda import as_on_cuda
from ddoctor.memory_tracking.tracker import SHARED, Peak, ShardedTracker, Tracker, on_gpu

# From the second step on, the optimizer has its states.
STEPS = 2

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """How a device computes the operators of a step."""

    active: Callable[[], AbstractContextManager[None]]
    """A context in which operators keep and return what these kernels do."""
    own: Callable[[Any, Sequence[Any]], int]
    """Bytes that a call needs in addition to what it returns."""


CUDA = Kernels(active=as_on_cuda, own=on_gpu)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory of a step on one rank, in bytes."""

    peaks: tuple[Peak, ...]
    """The peak of each phase."""
    sizes: Sequence[tuple[int, int]]
    """Each allocation, as input of `ddoctor.forecast.allocator.replay`."""
    shared: frozenset[int]
    """The allocations that shrink with the number of ranks."""
    parameters: int
    """Number of the model's parameters."""
    trainable: int
    gradients: int
    """Bytes of all gradients."""
    states: int
    """Bytes of the optimizer states of this rank's part."""
    block: int
    """Bytes of the parameters of the largest block, or of a whole model without blocks."""
    flops: int
    """FLOPs of the forward and the backward pass of one micro-batch.

    As torch's FlopCounterMode counts them: attention in full, though half of it is masked."""

    factor: float = 1.0
    """The sharded allocations are this many times as large as ``sizes`` says, at most 1."""

    @property
    def reserved(self) -> int:
        """Return the GPU memory that torch's caching allocator reserves for it."""
        return replay(
            (number, round(size / self.factor) if number in self.shared else size)
            for number, size in self.sizes
        ).reserved

    @property
    def peak(self) -> Peak:
        """Return the highest peak."""
        return max(self.peaks, key=lambda one: one.total)

    @property
    def total(self) -> int:
        """Return the bytes at that moment, as the allocator counts them."""
        return self.peak.total

    def spread(self, factor: float) -> Footprint:
        """Return the footprint with this many times as many ranks."""
        if factor == 1:
            return self
        return replace(
            self,
            peaks=tuple(replace(one, parts=_spread(one.parts, factor)) for one in self.peaks),
            states=round(self.states / factor),
            factor=factor * self.factor,
        )


def _spread(parts: Mapping[str, int], factor: float) -> Mapping[str, int]:
    return {name: round(size / factor) if name in SHARED else size for name, size in parts.items()}


def footprint(
    build: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    optimizer: Optimizer,
    *,
    autocast: torch.dtype | None = None,
    sharding: Sharding | None = None,
    checkpointing: Checkpointing = "none",
    accumulation: int = 1,
    kernels: Kernels = CUDA,
) -> Footprint:
    """Return the footprint of a step of a model whose forward pass returns its loss.

    ``autocast``: the computing dtype, if it differs from the weights'; ``sharding``: None if this
    rank has the whole model; ``accumulation``: micro-batches per optimizer step.

    Raises:
        DoctorError: the forward pass returns no loss.
    """
    model = on_meta(build)
    number = sum(one.numel() for one in model.parameters())
    trained = [one for one in model.parameters() if one.requires_grad]
    trainable, gradients = (sum(one.numel() for one in trained), sum(one.nbytes for one in trained))
    *rows, (_, whole) = units(model)
    block = max((size for _, size in rows), default=whole)
    with _quiet(), unpacked(), kernels.active(), apart(sharding) as mesh, FakeTensorMode():
        as_fake(model)
        recompute(model, checkpointing)
        if sharding is not None and mesh is not None:
            shard(model, sharding, mesh)
        shards = ShardedModel([one for one in model.parameters() if one.requires_grad])
        steps = optimizer(shards.parameters)
        samples = batch()
        kind = Tracker if sharding is None else ShardedTracker
        tracker = kind(model, steps, [one for one in samples.values() if isinstance(one, Tensor)])
        tracker.own = kernels.own
        with tracker:
            for _ in range(STEPS):
                tracker.peaks.clear()
                for _ in range(accumulation):
                    tracker.flops = 0
                    tracker.phase = "forward"
                    with _casting(autocast):
                        outputs = model(**samples)
                    tracker.logits = _numbers(getattr(outputs, "logits", None))
                    tracker.phase = "backward"
                    _loss(outputs).backward()  # type: ignore[no-untyped-call]
                    # Most loops keep the outputs until then, and logits are large.
                    del outputs
                    tracker.reset_mod_stats()
                tracker.phase = "optimizer"
                shards.take_gradients()
                steps.step()
                shards.drop_gradients()
        return Footprint(
            peaks=tuple(tracker.peaks.values()),
            sizes=tracker.sizes,
            shared=frozenset(tracker.shared),
            parameters=number,
            trainable=trainable,
            gradients=gradients,
            states=_kept(steps),
            block=block,
            flops=tracker.flops,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings, which concern real training, and the stacks that it logs."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


def _loss(outputs: object) -> Tensor:
    found = getattr(outputs, "loss", None)
    if not isinstance(found, Tensor):
        raise DoctorError(
            "the model's forward pass returns no loss (a tensor in .loss): pass a function that "
            "returns one with --workload"
        )
    return found


def _numbers(logits: object) -> tuple[int, int] | None:
    if not isinstance(logits, Tensor) or not logits.dim():
        return None
    return logits.numel(), logits.shape[-1]


def _kept(optimizer: torch.optim.Optimizer) -> int:
    states = (one for state in optimizer.state.values() for one in state.values())
    return sum(one.nbytes for one in states if isinstance(one, Tensor))


def _casting(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype) if dtype is not None else nullcontext()
