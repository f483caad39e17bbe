"""Rank 1 ends at once and says so on its standard error only."""

import os
import sys

import torch
import torch.distributed as dist

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> None:
    if world.rank == 1:
        print("leaving early", file=sys.stderr, flush=True)
        os._exit(3)
    dist.all_reduce(torch.ones(1))
