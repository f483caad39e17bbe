"""Rank 1 fails, and the others wait for it."""

import torch
import torch.distributed as dist

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> None:
    if world.rank == 1:
        raise ValueError("no such luck")
    dist.all_reduce(torch.ones(1))
