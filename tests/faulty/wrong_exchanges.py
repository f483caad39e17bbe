"""The collectives probe, on a fabric that gives rank 1 one wrong number in an all-to-all."""

from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> Any:
    right = dist.all_to_all_single

    def all_to_all(output: torch.Tensor, given: torch.Tensor, group: Any = None) -> None:
        right(output, given, group=group)
        if world.rank == 1:
            output[-1] += 1

    probe = import_module("ddoctor.probes.collectives")
    with patch.object(dist, "all_to_all_single", all_to_all), patch.object(probe, "SECONDS", 0.1):
        return probe.measure(world)
