"""Every rank sums its number with the others'."""

import torch
import torch.distributed as dist

from ddoctor.evidence.probes import StorageRead
from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> StorageRead | None:
    tensor = torch.full((1,), float(world.rank + 1))
    dist.all_reduce(tensor)
    return StorageRead(path=f"{tensor.item():.0f}") if world.rank == 0 else None
