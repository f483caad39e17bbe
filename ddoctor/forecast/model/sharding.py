"""Shards a model as FSDP2 does, in one process that plays one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from ddoctor.errors import DoctorError
from ddoctor.memory_tracking.blocks import blocks


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How to shard a model."""

    ranks: int
    within: int | None = None
    """Number of ranks that share one copy, for hybrid sharding; None: all ranks."""
    keeps_parameters: bool = False
    """Keep gathered parameters until the backward pass (SHARD_GRAD_OP, ZeRO-2)."""
    pipelined: bool = False
    """Keep what is gathered, and whole gradients, until the last micro-batch of a step, as torch's
    pipelines do (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync)."""
    computing: torch.dtype | None = None
    """The dtype of gathered parameters and reduced gradients; None: as stored."""


@contextmanager
def apart(sharding: Sharding | None) -> Iterator[DeviceMesh | None]:
    """Act as the first of several ranks without communication.

    Yields the ranks, or None if each has the whole model.

    Raises:
        DoctorError: this process already is a rank of a run.
    """
    if sharding is None:
        yield None
        return
    if dist.is_initialized():
        raise DoctorError("a plan needs a separate process: this one is a rank of a run")
    dist.init_process_group("fake", rank=0, world_size=sharding.ranks, store=FakeStore())
    try:
        if sharding.within is None:
            yield init_device_mesh("cpu", (sharding.ranks,))
        else:
            shape = sharding.ranks // sharding.within, sharding.within
            yield init_device_mesh("cpu", shape, mesh_dim_names=("repeated", "sharded"))
    finally:
        dist.destroy_process_group()


def shard(model: nn.Module, sharding: Sharding, mesh: DeviceMesh) -> None:
    """Shard each block, and then the rest, as accelerate's transformer-based wrapping does."""
    policy = MixedPrecisionPolicy(param_dtype=sharding.computing, reduce_dtype=sharding.computing)
    for one, _ in units(model):
        fully_shard(
            one,
            mesh=mesh,
            shard_placement_fn=partial(_placement, sharding.ranks),
            mp_policy=policy,
            reshard_after_forward=not sharding.keeps_parameters,
        )


def _placement(ranks: int, parameter: nn.Parameter) -> Shard | None:
    """Shard too few experts by their rows, as torchtitan does; None: as FSDP2 does."""
    few = parameter.dim() == 3 and parameter.shape[0] < ranks
    return Shard(1) if few and parameter.shape[1] % ranks == 0 else None


def exchange_if_last(model: nn.Module, *, last: bool) -> None:
    """Let the next backward pass of a stage reduce gradients and free parameters, or keep them."""
    if isinstance(model, FSDPModule):
        model.set_is_last_backward(last)
        model.set_reshard_after_backward(last)
        model.set_requires_gradient_sync(last)


def units(model: nn.Module) -> Sequence[tuple[nn.Module, int]]:
    """Return each unit that FSDP gathers, with its parameters' bytes: each block, and the rest."""
    sizes = [(one, sum(each.nbytes for each in one.parameters())) for one in blocks(model)]
    whole = sum(each.nbytes for each in model.parameters())
    return [*sizes, (model, whole - sum(size for _, size in sizes))]


def own_shard(parameter: nn.Parameter) -> nn.Parameter:
    """Return one rank's shard as a plain tensor; a parameter that is not sharded, itself.

    An optimizer works on it as on a DTensor, without the whole tensors that DTensor's propagation
    of shapes makes, which on fake tensors look like any others.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(parameter._local_tensor.detach())
