"""The communication of a training step, and how it completes after one rank ran out of memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.work import Workload
from ddoctor.probing.world import ProbeWorld

# Before the second forward pass, DDP orders its buckets as in the first backward pass.
SETTLED = 2


class Exchange:
    """The communication of one rank: none, as for one rank alone."""

    def __init__(self, work: Workload) -> None:
        self.work = work

    @property
    def apart(self) -> nn.Module:
        """Return the model for a step without communication."""
        return self.work.model

    def together(self) -> nn.Module:
        """Begin a step with all ranks; return the model for it."""
        return self.work.model

    @property
    def settled(self) -> bool:
        """Whether the collectives of a step are known and final."""
        return True

    def permanent(self) -> tuple[Sequence[Tensor], int]:
        """Return the permanent tensors for communication, and bytes of those not known yet."""
        return (), 0

    def demand_gradients(self) -> None:
        """Check the gradients after the backward pass.

        Raises:
            DoctorError: a gradient is missing for which the ranks would wait.
        """

    def forget(self) -> bool:
        """Discard a step that this rank left midway; return whether the optimizer stays valid."""
        self.work.model.zero_grad()
        return True

    def finish(self) -> None:
        """Complete the collectives of a step that this rank left, for which others still wait."""

    def renew(self) -> None:
        """Rebuild on all ranks, before the first step and after a step that a rank left."""


class Replicas(Exchange):
    """DDP: each rank has the whole model, and gradients are all-reduced.

    All-reduces come in order, so that a rank can join the remaining ones. The step before shows
    which these are.
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

    def permanent(self) -> tuple[Sequence[Tensor], int]:
        """Return the final buckets, or before them their bytes: as many as all gradients."""
        buckets = (self._seen or self._known) if self.settled else ()
        every = sum(one.nbytes for one in self.work.model.parameters() if one.requires_grad)
        return buckets, every - sum(one.nbytes for one in buckets)

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
        for bucket in self._known[len(self._seen) :]:
            dist.all_reduce(torch.zeros_like(bucket))
        self._seen = self._known

    def renew(self) -> None:
        """Rebuild DDP: a reducer that stopped in a backward pass cannot start another one."""
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
        self._seen.append(bucket.buffer())
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]
