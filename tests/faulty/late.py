"""Rank 1 waits for something else, and the others for rank 1."""

import time

import torch
import torch.distributed as dist

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> None:
    if world.rank == 1:
        time.sleep(1000)
    world.doing("the collective")
    dist.all_reduce(torch.ones(1))
