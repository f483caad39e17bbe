"""The memory of a rank's device, and what a step takes of it: a GPU's, or one that is played."""

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
    """What a step held, in bytes, once it is over."""

    held: Sequence[int] = ()
    """After each operator, what was allocated."""
    reserved: int = 0
    """The most that the caching allocator had from the device."""
    retries: int = 0
    """How often it gave back all that was cached, because there was no more."""


class SimulatedMemory:
    """CPU tensors, counted by torch's own tracker, against a size that was stated."""

    def __init__(self, size: int) -> None:
        self.total = self.limit = size
        """Bytes that there are, and that the allocator can get."""
        self.others = 0
        """Bytes that are not the allocator's: of other processes, and CUDA's context."""

    @contextmanager
    def watch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        buckets: Sequence[Tensor],
        unseen: int,
    ) -> Iterator[Meter]:
        """While a step is made; more than there is raises torch's OutOfMemoryError.

        DDP's ``buckets`` are there already, and so many bytes of them that are ``unseen``: who
        they are is known only after an exchange.
        """
        from ddoctor.memory_tracking.operators import LimitedTracker

        tracker = LimitedTracker(model, optimizer, buckets, self.limit - unseen)
        meter = Meter()
        with tracker:
            yield meter
        meter.held = [held + unseen for held in tracker.held]
        meter.reserved = max(meter.held)


class GpuMemory:
    """What CUDA's caching allocator tells."""

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
        """While a step is made, from an empty cache on; the allocator sees all there is."""
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
    """This rank's.

    Raises:
        DoctorError: there is no GPU, and nobody said how much memory to play.
    """
    if world.on_gpu:
        return GpuMemory(world.device, size)
    if size is None:
        raise DoctorError(
            "there is no GPU to measure: say how much memory one would have: --device-memory 24GiB"
        )
    return SimulatedMemory(size)
