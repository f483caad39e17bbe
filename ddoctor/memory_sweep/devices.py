"""The memory of a rank's device and a step's use of it: a GPU's, or simulated memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddoctor.errors import DoctorError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ddoctor.probing.world import ProbeWorld


@dataclass
class Meter:
    """The memory of a step in bytes, complete once it is over."""

    held: Sequence[int] = ()
    """Allocated bytes after each operator."""
    reserved: int = 0
    """The caching allocator's peak of reserved memory."""
    retries: int = 0
    """Number of times that it freed its cache because the device was full."""


class SimulatedMemory:
    """CPU tensors, counted by torch's own tracker against a given size."""

    def __init__(self, size: int) -> None:
        self.total = self.limit = size
        """Total bytes, and bytes that the allocator can get."""
        self.others = 0
        """Bytes outside of the allocator: other processes, and the CUDA context."""

    @contextmanager
    def watch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        buckets: Sequence[Tensor],
        unseen: int,
    ) -> Iterator[Meter]:
        """Measure a step; more than the limit raises torch's OutOfMemoryError.

        DDP's ``buckets`` are allocated already, and so are the ``unseen`` bytes: DDP's tensors for
        those are known only after an exchange.
        """
        from ddoctor.memory_tracking.operators import LimitedTracker

        tracker = LimitedTracker(model, optimizer, buckets, self.limit - unseen)
        meter = Meter()
        with tracker:
            yield meter
        meter.held = [held + unseen for held in tracker.held]
        meter.reserved = max(meter.held)


class GpuMemory:
    """A GPU's memory, by the statistics of CUDA's caching allocator."""

    def __init__(self, device: torch.device, size: int | None) -> None:
        import torch

        free, self.total = torch.cuda.mem_get_info(device)
        self._device = device
        self.limit = free + torch.cuda.memory_reserved(device)
        self.others = self.total - self.limit
        if size is not None and size < self.limit:
            torch.cuda.set_per_process_memory_fraction(size / self.total, device)
            self.limit = size

    @contextmanager
    def watch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        buckets: Sequence[Tensor],
        unseen: int,
    ) -> Iterator[Meter]:
        """Measure a step, starting with an empty cache; the allocator counts all tensors."""
        import torch

        from ddoctor.memory_tracking.operators import Allocated

        del model, optimizer, buckets, unseen
        torch.cuda.empty_cache()
        meter = Meter()
        with Allocated(self._device) as allocated:
            yield meter
        meter.held, meter.reserved = allocated.held, allocated.reserved
        meter.retries = allocated.retries


def device(world: ProbeWorld, size: int | None) -> SimulatedMemory | GpuMemory:
    """Return this rank's device.

    Raises:
        DoctorError: there is no GPU, and no size to simulate.
    """
    if world.on_gpu:
        return GpuMemory(world.device, size)
    if size is None:
        raise DoctorError(
            "there is no GPU to measure: pass the memory of one to simulate: --device-memory 24GiB"
        )
    return SimulatedMemory(size)
