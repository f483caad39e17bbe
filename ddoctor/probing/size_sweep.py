"""Measure a collective over message sizes, doubled until the bandwidth no longer grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from ddoctor.evidence.probes import SweepPoint
from ddoctor.probing.world import ROUNDS, WARM_UPS, ProbeWorld, percentile

# Published curves end at this size, and are flat there.
LARGEST = 2**33

# The bandwidth no longer grows when each of two doublings gained less than this. The count begins
# at a size above NCCL's changes of algorithm: Azure's curves of 8 GPUs (AI-benchmarking-guide)
# still gain 5 % from 512 MiB to 1 GiB. Gloo peaks earlier: memory bandwidth limits it.
GROWTH = 0.03
STEADY_FROM = {"nccl": 2**28, "gloo": 2**22}


def sizes(
    world: ProbeWorld, points: Sequence[SweepPoint], *, first: int, top: int, seconds: float
) -> Iterator[tuple[int, float]]:
    """Yield sizes in bytes, each with the seconds that are left, while a larger size is useful.

    ``points`` are the caller's measurements so far. The ranks agree on every step.
    """
    deadline = time.perf_counter() + seconds * world.share_of_time
    for size in (2**power for power in range(first.bit_length() - 1, top.bit_length())):
        left = deadline - time.perf_counter()
        if not world.agree(_worthwhile(points, left, STEADY_FROM[world.backend])):
            return
        yield size, left


def largest(bytes_free: int) -> int:
    """The largest size in bytes whose buffer fits this memory."""
    return int(min(LARGEST, 2 ** (bytes_free.bit_length() - 1)))


def point(
    world: ProbeWorld,
    what: str,
    work: Callable[[], object],
    *,
    size: int,
    bandwidth: Callable[[int, float, int], float],
    seconds: float,
) -> SweepPoint:
    """Measure one size in about ``seconds``; the slowest rank determines its time.

    ``bandwidth`` computes the bus bandwidth (GB/s) from bytes, seconds and ranks.
    """
    rounds = world.rounds(f"{what} of {size} bytes", work, seconds=seconds)
    p50, p99, minimum = max(world.gather((median(rounds), percentile(rounds, 99), min(rounds))))
    return SweepPoint(
        bytes=size,
        rounds=len(rounds),
        p50=p50,
        p99=p99,
        minimum=minimum,
        bus_bandwidth=bandwidth(size, p50, world.size),
    )


def _worthwhile(points: Sequence[SweepPoint], left: float, steady_from: int) -> bool:
    """Whether the next size fits into the remaining time and may still raise the bandwidth."""
    if not points:
        return True
    if left < 2 * points[-1].p50 * (WARM_UPS + ROUNDS):
        return False
    if len(points) < 3 or points[-1].bytes < 4 * steady_from:
        return True
    before, middle, last = (point.bus_bandwidth for point in points[-3:])
    return middle > before * (1 + GROWTH) or last > middle * (1 + GROWTH)
