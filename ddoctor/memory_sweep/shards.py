"""The communication of FSDP2.

Each rank has a shard of each tensor, gathers a block to compute it, and scatters its gradients.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.exchange import Exchange
from ddoctor.memory_sweep.work import Workload
from ddoctor.memory_tracking.blocks import blocks
from ddoctor.probing.world import ProbeWorld

# Whether it gathers; else it scatters.
RUN: Mapping[bool, Callable[..., Any]] = {
    True: dist.all_gather_into_tensor,
    False: dist.reduce_scatter_tensor,
}


class ShardCall(NamedTuple):
    """One collective."""

    gathers: bool
    received: int
    """Number of received elements."""
    sent: int
    dtype: torch.dtype


class ShardedExchange(Exchange):
    """FSDP's collectives in order, run or skipped.

    If they are skipped, a rank computes with its own shard instead of all others'. The numbers are
    wrong, but the tensors have the same sizes, and are allocated and freed at the same moments.
    """

    def __init__(self, world: ProbeWorld, make: Callable[[], Workload]) -> None:
        self._world, self._make = world, make
        self._mesh = init_device_mesh(world.device.type, (world.size,))
        self._exchanges = False
        self._seen: list[ShardCall] = []
        self._known: Sequence[ShardCall] = ()
        self._done = 0
        """Completed collectives of the step that this rank left."""
        self.work = self._sharded()

    @property
    def apart(self) -> nn.Module:
        """Return the model, its collectives skipped."""
        self._begin(exchanges=False)
        return self.work.model

    def together(self) -> nn.Module:
        """Return the model, its collectives run."""
        self._begin(exchanges=True)
        return self.work.model

    def forget(self) -> bool:
        """Drop the model too: FSDP cannot recover in the middle of a step."""
        self._done, self._seen = len(self._seen), []
        del self.work
        gc.collect()
        self.work = self._sharded()
        return False

    def finish(self) -> None:
        """Run the remaining collectives on zeros."""
        device = self._world.device
        for one in self._known[self._done :]:
            received = torch.empty(one.received, dtype=one.dtype, device=device)
            RUN[one.gathers](received, torch.zeros(one.sent, dtype=one.dtype, device=device))

    def _begin(self, *, exchanges: bool) -> None:
        # A step has the same collectives for any number of samples.
        self._known, self._seen = self._seen or self._known, []
        self._exchanges = exchanges

    def _sharded(self) -> Workload:
        self._world.doing("building and sharding the model")
        # Each block is moved separately: all blocks together may not fit the device.
        with torch.device("cpu"):
            work = self._make()
        names = {one: name for name, one in work.model.named_parameters()}
        for one in (*blocks(work.model), work.model):
            unit: Any = fully_shard(one, mesh=self._mesh)
            unit.set_custom_all_gather(_Collective(self, gathers=True))
            unit.set_custom_reduce_scatter(_Collective(self, gathers=False))
        shards = dict(work.model.named_parameters())
        for group in work.optimizer.param_groups:
            group["params"] = [shards[names[one]] for one in group["params"]]
        return work

    def run(self, gathers: bool, received: Tensor, sent: Tensor, **how: Any) -> Any:
        """Run a collective, or skip it: gather this rank's own shard for all, or scatter to it."""
        self._seen.append(ShardCall(gathers, received.numel(), sent.numel(), received.dtype))
        if self._exchanges:
            return RUN[gathers](received, sent, **how)
        if not gathers:
            received.view(-1).copy_(sent.view(self._world.size, -1)[self._world.rank])
            return None
        for part in received.view(self._world.size, -1):
            if part.data_ptr() != sent.data_ptr():
                part.copy_(sent.view(-1))
        return None


class _Collective:
    """A collective as FSDP calls it, which allocates memory as FSDP does."""

    def __init__(self, exchange: ShardedExchange, *, gathers: bool) -> None:
        self._exchange, self._gathers = exchange, gathers

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate the buffer of a collective."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **how: Any) -> Any:
        return self._exchange.run(self._gathers, output_tensor, input_tensor, group=group, **how)


def check_torch() -> None:
    """Check that FSDP accepts custom collectives.

    Raises:
        DoctorError: this version of torch does not support them.
    """
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise DoctorError(
            "--fsdp needs a torch whose FSDP2 accepts custom collectives, such as 2.9"
        )
