"""The largest micro-batch that fits on each device, and its speed, by real training steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from statistics import median

from msgspec.structs import replace

from ddoctor.errors import DoctorError
from ddoctor.evidence.memory_headroom import Longest, MemoryHeadroom
from ddoctor.memory_sweep import devices, shards, work
from ddoctor.memory_sweep.exchange import Exchange, Replicas
from ddoctor.memory_sweep.search import MemoryLines
from ddoctor.memory_sweep.sweep import TIMED, MemorySweep
from ddoctor.memory_sweep.training import TrainingSteps, out_of_memory
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.probing.world import ProbeWorld

ONLY_IF_NAMED = True


def measure(world: ProbeWorld) -> MemoryHeadroom | None:
    """Each rank alone first, then with gradient exchange."""
    request = world.headroom
    if request is None:
        raise DoctorError(
            "name the training: torchrun … -m ddoctor.probe memory_headroom --workload "
            "package.module:factory"
        )
    size = request.memory_of(world.local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", world.size)))
    device = devices.device(world, size)
    exchange = _built(world, request)
    lines = MemoryLines()
    sweep = MemorySweep(
        world, device, lines, workload=request.workload, current=request.micro_batch
    )
    failed = [rank for rank, built in enumerate(world.gather(exchange is not None)) if not built]
    longest = None
    if failed or exchange is None:
        sweep.fails(failed)
    else:
        sweep.weigh([exchange.work.model])
        training = TrainingSteps(world, device, exchange, lines)
        _run(sweep, training, request)
        if request.sequence is not None:
            longest = _longest(world, device, training, request, request.sequence)
    told = replace(sweep.result(), sharded=request.sharded, longest=longest)
    return told if world.rank == 0 else None


def _built(world: ProbeWorld, request: SweepRequest) -> Exchange | None:
    """The training on this rank; None: not even the model fits."""
    make = work.factory(request.workload, request.folder)

    def made() -> work.Workload:
        found = work.checked(request.workload, make())
        work.check_loss(found, work.Shape(request.micro_batch or 1, request.sequence))
        return found

    world.doing(f"building {request.workload}")
    try:
        if request.sharded:
            shards.check_torch()
            return shards.ShardedExchange(world, made)
        with world.device:
            found = made()
        return Replicas(world, found) if world.size > 1 else Exchange(found)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return None


def _run(sweep: MemorySweep, training: TrainingSteps, request: SweepRequest) -> None:
    """Search the largest micro-batch, and measure its speed."""
    shape = partial(work.Shape, tokens=request.sequence)
    _search(sweep, training, shape)
    largest, safe, current = sweep.largest, sweep.safe(), request.micro_batch or 0
    for size in sorted({current if current <= largest else 0, safe or largest} - {0}):
        if not sweep.known(size):
            sweep.take(size, training.together(shape(size)), exchange=True)
        if seconds := training.seconds(shape(size), TIMED):
            sweep.rate(size, median(seconds))


def _longest(
    world: ProbeWorld,
    device: devices.DeviceMemory,
    training: TrainingSteps,
    request: SweepRequest,
    current: int,
) -> Longest:
    """Search the longest sequence, with the current micro-batch or one sample."""
    samples, training.lines = request.micro_batch or 1, MemoryLines()
    sweep = MemorySweep(world, device, training.lines, workload=request.workload, current=current)
    _search(sweep, training, partial(work.Shape, samples))
    return Longest(
        samples=samples,
        current=current,
        tokens=sweep.largest,
        too_long=sweep.too_large,
        stopped=sweep.stopped,
    )


def _search(
    sweep: MemorySweep, training: TrainingSteps, shape: Callable[[int], work.Shape]
) -> None:
    while True:
        while (size := sweep.next()) is not None:
            sweep.take(size, training.alone(shape(size), size), exchange=False)
            sweep.extrapolate()
        largest = sweep.largest
        if not largest or sweep.take(largest, training.together(shape(largest)), exchange=True):
            return
