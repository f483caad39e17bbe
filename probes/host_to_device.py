"""Bandwidth between pinned host memory and each GPU in GB/s, both ways, one GPU at a time."""

from __future__ import annotations

from functools import partial

import torch

from ddoctor.evidence.probes import HostToDevice
from ddoctor.probing.world import ROUNDS, WARM_UPS, ProbeWorld, Skip

# 1.2 ms on PCIe 5, and still only 20 ms on a link that fell back to Gen 3 x4.
BYTES = 2**26


def measure(world: ProbeWorld) -> HostToDevice | None:
    """One GPU after another, because GPUs may share a PCIe switch: the figure is one GPU's link."""
    if not world.on_gpu:
        raise Skip("no GPU is in use")
    size = min(BYTES, world.memory())
    on_host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    on_device = torch.zeros(size, dtype=torch.uint8, device=world.device)
    ways = {
        "to the device": partial(on_device.copy_, on_host, non_blocking=True),
        "to the host": partial(on_host.copy_, on_device, non_blocking=True),
    }
    seconds: dict[str, list[float]] = {}
    for turn in range(world.size):
        if turn == world.rank:
            for way, work in ways.items():
                world.timed(f"{way}, warming up", work, WARM_UPS)
                seconds[way] = world.timed(way, work, ROUNDS)
        world.meet()
    to_device, to_host = (world.rates(size / 1e9, seconds[way]) for way in ways)
    return HostToDevice(to_device=to_device, to_host=to_host) if world.rank == 0 else None
