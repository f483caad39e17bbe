"""The all-reduce probe, on a fabric that gives rank 1 one wrong number."""

from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> Any:
    right = dist.all_reduce

    def all_reduce(tensor: torch.Tensor) -> None:
        right(tensor)
        if world.rank == 1:
            tensor[-1] += 1

    with patch.object(dist, "all_reduce", all_reduce):
        return import_module("ddoctor.probes.allreduce").measure(world)
