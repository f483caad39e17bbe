"""The communication of FSDP2.

Each rank has a shard of each tensor, gathers a block to compute it, and scatters its gradients.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.exchange import Exchange
from ddoctor.memory_sweep.work import Workload

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ddoctor.probing.world import ProbeWorld


class ShardCall(NamedTuple):
    """One collective."""

    gathers: bool
    """Whether it gathers; else it scatters."""
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
        from torch.distributed.device_mesh import init_device_mesh

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

    def demand_gradients(self) -> None:
        """FSDP needs no check: it takes the gradients that there are."""

    def forget(self) -> bool:
        """Drop the model too: FSDP cannot recover in the middle of a step."""
        self._done, self._seen = len(self._seen), []
        del self.work
        gc.collect()
        self.work = self._sharded()
        return False

    def finish(self) -> None:
        """Run the remaining collectives on zeros."""
        import torch
        import torch.distributed as dist

        device = self._world.device
        for one in self._known[self._done :]:
            received = torch.empty(one.received, dtype=one.dtype, device=device)
            sent = torch.zeros(one.sent, dtype=one.dtype, device=device)
            if one.gathers:
                dist.all_gather_into_tensor(received, sent)
            else:
                dist.reduce_scatter_tensor(received, sent)

    def renew(self) -> None:
        """Build the model if needed: a rank that completed a step can run the next."""

    def _begin(self, *, exchanges: bool) -> None:
        # A step has the same collectives for any number of samples.
        self._known, self._seen = self._seen or self._known, []
        self._exchanges = exchanges

    def _sharded(self) -> Workload:
        import torch
        from torch.distributed.fsdp import fully_shard

        from ddoctor.memory_tracking.blocks import blocks

        self._world.doing("building and sharding the model")
        # Each block is moved separately: all blocks together may not fit the device.
        with torch.device("cpu"):
            work = self._make()
        names = {one: name for name, one in work.model.named_parameters()}
        for one in (*blocks(work.model), work.model):
            unit: Any = fully_shard(one, mesh=self._mesh)
            unit.set_custom_all_gather(_Gather(self))
            unit.set_custom_reduce_scatter(_Scatter(self))
        shards = dict(work.model.named_parameters())
        for group in work.optimizer.param_groups:
            group["params"] = [shards[names[one]] for one in group["params"]]
        return work

    def gather(self, whole: Tensor, own: Tensor, group: Any, wait: bool) -> Any:
        """Gather all ranks' shards, or repeat this rank's own."""
        import torch.distributed as dist

        self._seen.append(ShardCall(True, whole.numel(), own.numel(), own.dtype))
        if self._exchanges:
            return dist.all_gather_into_tensor(whole, own, group=group, async_op=not wait)
        for part in whole.view(self._world.size, -1):
            if part.data_ptr() != own.data_ptr():
                part.copy_(own.view(-1))
        return None

    def scatter(self, own: Tensor, whole: Tensor, group: Any, how: Any, wait: bool) -> Any:
        """Reduce all ranks' gradients for this rank's shard, or take its own."""
        import torch.distributed as dist

        self._seen.append(ShardCall(False, own.numel(), whole.numel(), own.dtype))
        if self._exchanges:
            return dist.reduce_scatter_tensor(own, whole, op=how, group=group, async_op=not wait)
        own.view(-1).copy_(whole.view(self._world.size, -1)[self._world.rank])
        return None


class _Memory:
    """Allocates memory as FSDP does."""

    def __init__(self, shards: ShardedExchange) -> None:
        self._shards = shards

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate the buffer of a collective."""
        import torch

        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Memory):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        return self._shards.gather(output_tensor, input_tensor, group, not async_op)


class _Scatter(_Memory):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        return self._shards.scatter(output_tensor, input_tensor, group, op, not async_op)


def check_torch() -> None:
    """Check that FSDP accepts custom collectives.

    Raises:
        DoctorError: this version of torch does not support them.
    """
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise DoctorError(
            "--fsdp needs a torch whose FSDP2 accepts custom collectives, such as 2.9"
        )
