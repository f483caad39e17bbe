"""How many samples fit each device, and how fast they train: real steps, until one does not fit."""

from __future__ import annotations

import os
from statistics import median

from ddoctor.errors import DoctorError
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.harness import World
from ddoctor.headroom import devices, work
from ddoctor.headroom.lines import Lines
from ddoctor.headroom.sweep import TIMED, Sweep
from ddoctor.headroom.training import Training, out_of_memory

ONLY_IF_NAMED = True


def measure(world: World) -> MemoryHeadroom | None:
    """Each rank alone first, then with the exchange of gradients."""
    request = world.headroom
    if request is None:
        raise DoctorError(
            "say what is trained: torchrun … -m ddoctor.probe memory_headroom --workload "
            "package.module:factory"
        )
    size = request.memory_of(world.local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", world.size)))
    device = devices.device(world, size)
    make = work.factory(request.workload, request.folder)
    made = None
    world.doing(f"building {request.workload}")
    try:
        with world.device:
            made = work.checked(request.workload, make())
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    lines = Lines()
    sweep = Sweep(world, device, lines, workload=request.workload, current=request.micro_batch)
    failed = [rank for rank, built in enumerate(world.gather(made is not None)) if not built]
    if failed or made is None:
        sweep.fails(failed)
    else:
        sweep.weigh([made.model])
        _run(sweep, Training(world, device, made, lines), request.micro_batch or 0)
    told = sweep.told()
    return told if world.rank == 0 else None


def _run(sweep: Sweep, training: Training, current: int) -> None:
    """Until the largest is known, and how fast it is."""
    while True:
        while (size := sweep.next()) is not None:
            sweep.take(size, training.alone(size), exchange=False)
            sweep.foretell()
        largest = sweep.largest
        if not largest or sweep.take(largest, training.together(largest), exchange=True):
            break
    safe = sweep.safe()
    for size in sorted({current if current <= largest else 0, safe or largest} - {0}):
        if not sweep.known(size):
            sweep.take(size, training.together(size), exchange=True)
        if seconds := training.seconds(size, TIMED):
            sweep.rate(size, median(seconds))
