"""All-reduce bandwidth and latency over all ranks, from 1 KiB to the largest useful size."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from ddoctor.evidence.probes import AllReduce, SweepPoint, WrongValue
from ddoctor.probing import size_sweep
from ddoctor.probing.world import ProbeWorld, Skip, bus_bandwidth, first_difference

SMALLEST = 2**10

# All sizes together; a size is begun when the last one says that it will fit.
SECONDS = 6.0

# The values that are verified repeat after this many elements: checking takes little memory.
PERIOD = 2**22
PRIME = 251
BYTES = 4


def measure(world: ProbeWorld) -> AllReduce | None:
    """One sweep over sizes; values are verified at each size, after its timed rounds."""
    if world.size < 2:
        raise Skip("there is only one rank, and nothing to sum")
    # Half of what may be taken: gloo keeps a second buffer of the same size.
    top = size_sweep.largest(world.memory() // 2)
    buffer = torch.empty(top // BYTES, device=world.device)
    points: list[SweepPoint] = []
    wrong: list[WrongValue] = []
    for size, left in size_sweep.sizes(world, points, first=SMALLEST, top=top, seconds=SECONDS):
        tensor = buffer[: size // BYTES].zero_()
        points.append(one_size(world, tensor, seconds=left))
        wrong += _verify(world, size, tensor)
    chosen = world.nccl()
    ranks = world.places()
    if world.rank > 0:
        return None
    return AllReduce(
        backend=world.backend,
        ranks=ranks,
        points=tuple(points),
        wrong=tuple(wrong),
        algorithm=chosen.algorithm or None,
        transport=", ".join(chosen.transports) or None,
        nccl=chosen.version or None,
    )


def one_size(world: ProbeWorld, tensor: torch.Tensor, *, seconds: float) -> SweepPoint:
    """One point of the sweep, in about ``seconds``; the slowest rank counts."""
    size = tensor.numel() * BYTES
    return size_sweep.point(
        world,
        "all-reduce",
        partial(dist.all_reduce, tensor),
        size=size,
        bandwidth=bus_bandwidth,
        seconds=seconds,
    )


def _verify(world: ProbeWorld, size: int, tensor: torch.Tensor) -> tuple[WrongValue, ...]:
    """The first wrong value on each rank; the test numbers are small integers with an exact sum."""
    rows = tensor.view(-1, min(PERIOD, tensor.numel()))
    pattern = torch.arange(rows.shape[1], device=world.device) % PRIME
    rows.copy_(pattern + world.rank)
    world.doing(f"all-reduce of {size} bytes, to verify its values")
    dist.all_reduce(tensor)
    expected = (pattern * world.size + sum(range(world.size))).float()
    # Row by row, as far as the first difference: comparing all at once takes too much memory.
    mine = next(filter(None, (first_difference(expected, row) for row in rows)), None)
    return world.wrong_values(size, mine)
