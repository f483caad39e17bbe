"""Work of 50 ms a round: too slow for all rounds in one second, and the ranks must agree on it."""

import time
from functools import partial

from ddoctor.evidence.probes import StorageRead
from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> StorageRead | None:
    seconds = world.rounds("sleep", partial(time.sleep, 0.05), seconds=0.5)
    same = len(set(world.gather(len(seconds)))) == 1
    in_order = world.gather(world.rank) == list(range(world.size))
    first = world.agree(f"rank {world.rank}") == "rank 0"
    slow = all(one >= 0.05 for one in seconds)
    if world.rank > 0:
        return None
    return StorageRead(
        path=" ".join(map(str, (same, in_order, first, slow))), small_file_count=len(seconds)
    )
