"""The memory of a rank's device: a GPU's, or CPU tensors that are counted against a given size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.exchange import Exchange
from ddoctor.memory_tracking.operators import Allocated, LimitedTracker
from ddoctor.probing.world import ProbeWorld


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of one device, in bytes."""

    total: int
    limit: int
    """Bytes that the allocator can get."""
    others: int = 0
    """Bytes outside of the allocator: other processes, and the CUDA context."""
    gpu: torch.device | None = None
    """None: CPU tensors, counted against ``limit`` by torch's own tracker."""

    def watch(self, exchange: Exchange) -> LimitedTracker | Allocated:
        """Measure a step: on a GPU, of all tensors; on CPU tensors, of this training.

        More CPU tensors than the limit raise torch's OutOfMemoryError. The permanent tensors for
        communication are allocated already, also those that are known only after an exchange.
        """
        if self.gpu is not None:
            return Allocated(self.gpu)
        buckets, unseen = exchange.permanent()
        work = exchange.work
        return LimitedTracker(work.model, work.optimizer, buckets, self.limit, unseen)


def device(world: ProbeWorld, size: int | None) -> DeviceMemory:
    """Return this rank's device.

    Raises:
        DoctorError: there is no GPU, and no size to simulate.
    """
    if not world.on_gpu:
        if size is None:
            raise DoctorError(
                "there is no GPU to measure: pass the memory of one to simulate: "
                "--device-memory 24GiB"
            )
        return DeviceMemory(total=size, limit=size)
    free, total = torch.cuda.mem_get_info(world.device)
    limit = free + torch.cuda.memory_reserved(world.device)
    others = total - limit
    if size is not None and size < limit:
        torch.cuda.set_per_process_memory_fraction(size / total, world.device)
        limit = size
    return DeviceMemory(total=total, limit=limit, others=others, gpu=world.device)
