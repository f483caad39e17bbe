"""The matmul probe, on a device of rank 1 that gets one number wrong."""

from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> Any:
    right = torch.mm

    def mm(left: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> None:
        right(left, other, out=out)
        if world.rank == 1:
            out[-1, -1] += 1

    with patch.object(torch, "mm", mm):
        return import_module("ddoctor.probes.matmul").measure(world)
