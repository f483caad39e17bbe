"""The burn, on a device of rank 1 that gets one number wrong, once."""

from itertools import count
from typing import Any
from unittest.mock import patch

import torch

from ddoctor.probing.world import ProbeWorld
from tests.faulty import short_burn

WRONG = 5


def measure(world: ProbeWorld) -> Any:
    right, numbers = torch.mm, count()

    def mm(left: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> None:
        right(left, other, out=out)
        if world.rank == 1 and next(numbers) == WRONG:
            out[-1, -1] += 1

    with patch.object(torch, "mm", mm):
        return short_burn.measure(world)
