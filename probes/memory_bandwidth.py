"""Device memory bandwidth of each rank in GB/s, all ranks at the same time."""

from __future__ import annotations

from functools import partial

import torch

from ddoctor.evidence.probes import MemoryBandwidth
from ddoctor.probing.world import ProbeWorld

SECONDS = 1.5

# Many times the L2 cache of any GPU, or the copy would be served from there.
BYTES = {"cuda": 2**30, "cpu": 2**28}


def measure(world: ProbeWorld) -> MemoryBandwidth | None:
    """Copies one buffer to another."""
    size = min(BYTES[world.device.type], world.memory() // 2)
    source, target = torch.zeros(2, size, dtype=torch.uint8, device=world.device)
    work = partial(target.copy_, source)
    seconds = world.rounds(f"copy of {size} bytes", work, seconds=SECONDS * world.share_of_time)
    rates = world.rates(2 * size / 1e9, seconds)
    return MemoryBandwidth(rates=rates) if world.rank == 0 else None
