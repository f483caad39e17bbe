"""A collective over message sizes: by doubling, to where the bandwidth no longer grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from ddoctor.evidence.probes import SweepPoint
from ddoctor.probing.world import ROUNDS, WARM_UPS, ProbeWorld, percentile

# The published curves end there, and are flat.
LARGEST = 2**33

# The bandwidth no longer grows when each of two doublings brought less than this, counted from a
# size where NCCL's switches of algorithm lie behind: Azure's curves of 8 GPUs (AI-benchmarking-
# guide) still gain 5 % from 512 MiB to 1 GiB. Gloo's tops out earlier: it is bound by the memory.
GROWTH = 0.03
STEADY_FROM = {"nccl": 2**28, "gloo": 2**22}


def sizes(
    world: ProbeWorld, points: Sequence[SweepPoint], *, first: int, top: int, seconds: float
) -> Iterator[tuple[int, float]]:
    """Sizes in bytes, each with the seconds that are left, as long as another one may show more.

    ``points`` are what was measured so far, by the caller. The ranks agree on every step.
    """
    deadline = time.perf_counter() + seconds * world.share_of_time
    for size in (2**power for power in range(first.bit_length() - 1, top.bit_length())):
        left = deadline - time.perf_counter()
        if not world.agree(_worthwhile(points, left, STEADY_FROM[world.backend])):
            return
        yield size, left


def largest(bytes_free: int) -> int:
    """The largest size of which this much memory holds one buffer."""
    return int(min(LARGEST, 2 ** (bytes_free.bit_length() - 1)))


def point(
    world: ProbeWorld,
    what: str,
    work: Callable[[], object],
    *,
    size: int,
    bandwidth: Callable[[int, float], float],
    seconds: float,
) -> SweepPoint:
    """One size, in about ``seconds``; the time is that of the slowest rank.

    ``bandwidth`` gives the bus bandwidth (GB/s) of bytes and seconds.
    """
    rounds = world.rounds(f"{what} of {size} bytes", work, seconds=seconds)
    p50, p99, minimum = max(world.gather((median(rounds), percentile(rounds, 99), min(rounds))))
    return SweepPoint(
        bytes=size,
        rounds=len(rounds),
        p50=p50,
        p99=p99,
        minimum=minimum,
        bus_bandwidth=bandwidth(size, p50),
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
