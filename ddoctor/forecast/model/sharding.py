"""A model spread over ranks as FSDP2 does it, on this process alone: what it takes of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from ddoctor.errors import DoctorError
from ddoctor.memory_tracking.blocks import blocks


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Over how many ranks, and what of it."""

    ranks: int
    within: int | None = None
    """Over so many, and repeated by the others (hybrid); None: over all."""
    keeps_parameters: bool = False
    """Gathered parameters are kept until the backward pass (SHARD_GRAD_OP, ZeRO-2)."""
    computing: torch.dtype | None = None
    """Of gathered parameters, and of gradients as they travel; None: as they are kept."""


@contextmanager
def apart(sharding: Sharding | None) -> Iterator[DeviceMesh | None]:
    """As the first of so many ranks, which exchange nothing; the ranks, or None where each has the
    whole model.

    Raises:
        DoctorError: this process is a rank of a run already.
    """
    if sharding is None:
        yield None
        return
    if dist.is_initialized():
        raise DoctorError("a plan is made by a process of its own, not by a rank of a run")
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
    """Each block by itself, and then what is left, as accelerate's transformer-based wrapping."""
    policy = MixedPrecisionPolicy(param_dtype=sharding.computing, reduce_dtype=sharding.computing)
    for one, _ in units(model):
        fully_shard(
            one,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=not sharding.keeps_parameters,
        )


def units(model: nn.Module) -> Sequence[tuple[nn.Module, int]]:
    """What is gathered at a time, with the bytes of its parameters: each block, and the rest."""
    sizes = [(one, sum(each.nbytes for each in one.parameters())) for one in blocks(model)]
    whole = sum(each.nbytes for each in model.parameters())
    return [*sizes, (model, whole - sum(size for _, size in sizes))]


class ShardedModel:
    """The parameters of one rank as plain tensors.

    An optimizer works on them as on DTensors, without the whole tensors that DTensor's propagation
    of shapes makes, which on fake tensors look like any others.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._pairs = [(one, self._own(one)) for one in parameters]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer takes: the whole tensors where nothing is sharded."""
        return [own for _, own in self._pairs]

    def take_gradients(self) -> None:
        """From the model, before the optimizer's step."""
        for one, own in self._pairs:
            if one is not own:
                own.grad = one.grad._local_tensor if isinstance(one.grad, DTensor) else None

    def drop_gradients(self) -> None:
        """After the optimizer's step."""
        for pair in self._pairs:
            for one in pair:
                one.grad = None

    @staticmethod
    def _own(parameter: nn.Parameter) -> nn.Parameter:
        if not isinstance(parameter, DTensor):
            return parameter
        return nn.Parameter(parameter._local_tensor.detach())
