"""How fast all ranks sum a tensor together, from 1 KiB to where the bandwidth no longer grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from ddoctor.evidence.probes import AllReduce, SweepPoint, WrongValue
from ddoctor.harness import ROUNDS, WARM_UPS, Skip, World, bus_bandwidth, percentile

SMALLEST = 2**10
# The published curves end there, and are flat.
LARGEST = 2**33

# All sizes together; a size is begun when the last one says that it will fit.
SECONDS = 6.0

# The bandwidth no longer grows when each of two doublings brought less than this, counted from a
# size where NCCL's switches of algorithm lie behind: Azure's curves of 8 GPUs (AI-benchmarking-
# guide) still gain 5 % from 512 MiB to 1 GiB. Gloo's tops out earlier: it is bound by the memory.
GROWTH = 0.03
STEADY_FROM = {"nccl": 2**28, "gloo": 2**22}

# The values that are verified repeat after this many elements: checking takes little memory.
PERIOD = 2**22
PRIME = 251
BYTES = 4


def measure(world: World) -> AllReduce | None:
    """One sweep; the values are verified at each size, after its timed rounds."""
    if world.size < 2:
        raise Skip("there is one rank only, and nothing to sum")
    # Half of what may be taken: gloo keeps a second buffer of the same size.
    top = min(LARGEST, 2 ** ((world.memory() // 2).bit_length() - 1))
    buffer = torch.empty(top // BYTES, device=world.device)
    points: list[SweepPoint] = []
    wrong: list[WrongValue] = []
    deadline = time.perf_counter() + SECONDS
    for size in (2**power for power in range(SMALLEST.bit_length() - 1, top.bit_length())):
        left = deadline - time.perf_counter()
        if not world.agree(_worthwhile(points, left, STEADY_FROM[world.backend])):
            break
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


def one_size(world: World, tensor: torch.Tensor, *, seconds: float) -> SweepPoint:
    """One point of the sweep, in about ``seconds``; the time is that of the slowest rank."""
    size = tensor.numel() * BYTES
    work = partial(dist.all_reduce, tensor)
    rounds = world.rounds(f"all-reduce of {size} bytes", work, seconds=seconds)
    mine = (median(rounds), percentile(rounds, 99), min(rounds))
    p50, p99, minimum = max(world.gather(mine))
    return SweepPoint(
        bytes=size,
        rounds=len(rounds),
        p50=p50,
        p99=p99,
        minimum=minimum,
        bus_bandwidth=bus_bandwidth(size, p50, world.size),
    )


def _worthwhile(points: Sequence[SweepPoint], left: float, steady_from: int) -> bool:
    """Whether the next size fits into the time that is left, and can still show more."""
    if not points:
        return True
    if left < 2 * points[-1].p50 * (WARM_UPS + ROUNDS):
        return False
    if len(points) < 3 or points[-1].bytes < 4 * steady_from:
        return True
    before, middle, last = (point.bus_bandwidth for point in points[-3:])
    return middle > before * (1 + GROWTH) or last > middle * (1 + GROWTH)


def _verify(world: World, size: int, tensor: torch.Tensor) -> list[WrongValue]:
    """The first wrong value on each rank. Small whole numbers: their sum is exact in any order."""
    rows = tensor.view(-1, min(PERIOD, tensor.numel()))
    pattern = torch.arange(rows.shape[1], device=world.device) % PRIME
    rows.copy_(pattern + world.rank)
    world.doing(f"all-reduce of {size} bytes, to verify its values")
    dist.all_reduce(tensor)
    expected = (pattern * world.size + sum(range(world.size))).float()
    mine = None
    for row in rows:
        if not torch.equal(row, expected):
            at = int((row != expected).nonzero()[0])
            mine = (float(expected[at]), float(row[at]))
            break
    return [
        WrongValue(rank=rank, bytes=size, expected=found[0], got=found[1])
        for rank, found in enumerate(world.gather(mine))
        if found is not None
    ]
