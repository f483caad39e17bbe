"""The communication of DDP: each rank has the whole model, and gradients are all-reduced."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.exchange import NoExchange
from ddoctor.memory_sweep.work import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ddoctor.probing.world import ProbeWorld

# Before the second forward pass, DDP orders its buckets as in the first backward pass.
SETTLED = 2


class Replicas(NoExchange):
    """DDP's all-reduces in order, so that a rank can join the remaining ones.

    The step before shows which these are.
    """

    def __init__(self, world: ProbeWorld, work: Workload) -> None:
        super().__init__(work)
        self._world = world
        self._wrapped: nn.Module = work.model
        self._seen: list[Tensor] = []
        self._known: list[Tensor] = []
        self._steps = 0

    def together(self) -> nn.Module:
        """Return the model wrapped in DDP."""
        self._known, self._seen = self._seen, []
        self._steps += 1
        return self._wrapped

    @property
    def settled(self) -> bool:
        """Whether the buckets are known and final."""
        return self._steps >= SETTLED

    @property
    def buckets(self) -> Sequence[Tensor]:
        """Return the final buckets; empty before."""
        return (self._seen or self._known) if self.settled else ()

    @property
    def unseen(self) -> int:
        """Return the buckets' bytes: as many as all gradients."""
        every = sum(one.nbytes for one in self.work.model.parameters() if one.requires_grad)
        return every - sum(one.nbytes for one in self.buckets)

    def demand_gradients(self) -> None:
        """Check the gradient of every trainable parameter, as DDP waits for each of them."""
        every = self.work.model.named_parameters()
        without = [name for name, one in every if one.requires_grad and one.grad is None]
        if without:
            more = f" and {len(without) - 1} more" if len(without) > 1 else ""
            raise DoctorError(
                f"the loss of --workload does not depend on {without[0]}{more}: call "
                "requires_grad_(False) on the parameters that are not trained"
            )

    def finish(self) -> None:
        """Reduce zeros, once this rank's gradients are freed."""
        import torch
        import torch.distributed as dist

        for bucket in self._known[len(self._seen) :]:
            dist.all_reduce(torch.zeros_like(bucket))
        self._seen = self._known

    def renew(self) -> None:
        """Rebuild DDP: a reducer that stopped in a backward pass cannot start another one."""
        from torch.nn.parallel import DistributedDataParallel

        self._seen, self._known, self._steps = [], [], 0
        self._wrapped = self.work.model
        gc.collect()  # frees the hooks of the previous one
        self._world.doing("wrapping the model")
        model = DistributedDataParallel(self.work.model)
        # A broadcast of buffers before the forward pass would be one more collective to join.
        model.require_forward_param_sync = False
        # torch reads the annotations of a function, which must not be strings.
        model.register_comm_hook(self, lambda exchange, bucket: exchange.reduce(bucket))
        self._wrapped = model

    def reduce(self, bucket: Any) -> Any:
        """Return a future of the mean over all ranks, as DDP computes it."""
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self._seen.append(bucket.buffer())
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]
