"""The script's own training, with growing batches from its loaders.

Forward pass, loss and gradient exchange stay the script's own. All ranks agree on a size between
two steps, and keep it for some steps.

A GPU that runs out of memory ends the script, as it would without ddoctor. The supervisor sees this
in the file written here, and may start the script once more. CPU tensors are counted against a
stated size, and nothing ends.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ddoctor.memory_sweep import devices
from ddoctor.memory_sweep.search import MemoryLines
from ddoctor.memory_sweep.sweep import TIMED, MemorySweep
from ddoctor.memory_sweep.training import Use
from ddoctor.memory_tracking.operators import LimitedTracker, Meter
from ddoctor.probing.journal import Journal
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.probing.world import ProbeWorld
from ddoctor.recorder import facts, outermost, recorded
from ddoctor.recorder.batches import Batches
from ddoctor.recorder.outermost import Outermost
from ddoctor.recorder.stepping import Stepping

# The optimizer has its states, and DDP its buckets in the order of the backward pass.
SETTLED_STEPS = 3
# A loader that is a batch ahead, as accelerate's, has one of the size before.
AHEAD_STEPS = 2
# What there is of a step until the next is seen in the first of them: what the script keeps, its
# loss say, and DDP's buckets.
WATCHED_STEPS = 2


class BatchGrowth:
    """One rank's part."""

    _world: ProbeWorld
    _device: devices.DeviceMemory
    _sweep: MemorySweep

    def __init__(self, folder: Path, request: str, stepping: Stepping, models: Outermost) -> None:
        self._folder = folder
        self._request = msgspec.json.decode(request, type=SweepRequest)
        self._stepping, self._models = stepping, models
        self._batches = Batches(models.training)
        self._lines = MemoryLines()
        self._grown = recorded.Grown()
        self._course = self._grow()
        self._due = 0
        """The step before which it continues."""

    def install(self) -> None:
        """Hook into the loaders, and into the time between steps."""
        self._batches.install()
        self._stepping.between_steps(self._between_steps)

    def expected(self, error: BaseException) -> bool:
        """Whether this error ends a size that was tried, and not the script."""
        return self._grown.trying is not None and isinstance(error, torch.cuda.OutOfMemoryError)

    def _between_steps(self, number: int) -> int:
        if number < self._due:
            return self._due  # the models were looked for again
        try:
            self._due = number + next(self._course)
            return self._due
        except StopIteration:
            pass
        except Exception as error:  # it is told, and the turn is over
            self._write(why=str(error) or repr(error))
        self._stepping.stop()

    def _grow(self) -> Iterator[int]:
        """Yields the number of steps to wait."""
        yield SETTLED_STEPS
        batches = self._batches
        if not batches.given:
            self._write(
                why="no torch DataLoader delivered the batches: name the training by "
                "`-m ddoctor.probe memory_headroom --workload package.module:factory`"
            )
            return
        self._world = world = self._joined()
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
        memory = self._request.memory_of(world.local_rank, local_size)
        self._device = devices.device(world, memory)
        current = min(world.gather(batches.given))
        self._sweep = sweep = MemorySweep(
            world,
            self._device,
            self._lines,
            workload=Path(sys.argv[0]).name,
            current=current,
            first=self._request.micro_batch,
            epoch=batches.epoch,
            too_large=self._request.too_large,
        )
        sweep.weigh(self._models.roots.values())
        self._tell()
        while (size := sweep.next()) is not None:
            yield from self._tried(size)
        safe = sweep.safe()
        for size in sorted({current if current <= sweep.largest else 0, safe} - {0}):
            if not sweep.known(size):
                yield from self._tried(size)
            yield from self._timed(size)
        self._tell()

    def _tried(self, size: int) -> Iterator[int]:
        self._begin(size)
        yield AHEAD_STEPS
        with self._watched() as meter:
            began = perf_counter()
            yield WATCHED_STEPS
            self._synchronize()
            seconds = (perf_counter() - began) / WATCHED_STEPS
        most = max(meter.held)
        self._lines.record(size, meter.held)
        mine = Use(most, meter.reserved, meter.retries, seconds)
        rows = self._world.gather(list(mine) if most <= self._device.limit else None)
        used = [None if row is None else Use(*row) for row in rows]
        self._sweep.take(size, used, exchange=True)
        self._sweep.extrapolate()
        self._tell()

    def _timed(self, size: int) -> Iterator[int]:
        self._begin(size)
        yield AHEAD_STEPS
        seconds, self._batches.taken = [], 0
        for _ in range(TIMED):
            self._synchronize()
            began, self._batches.seconds = perf_counter(), 0.0
            yield 1
            self._synchronize()
            own = perf_counter() - began - self._batches.seconds
            seconds.append(max(self._world.gather(own)))
        # Where gradients are accumulated, a step has several.
        self._sweep.rate(size, median(seconds) * TIMED / max(self._batches.taken, 1))

    def _begin(self, size: int) -> None:
        self._batches.wanted = size
        self._write(trying=size)

    def _tell(self) -> None:
        sharded = any(facts.fsdp_units(one.modules()) for one in self._models.roots.values())
        self._write(headroom=msgspec.structs.replace(self._sweep.result(), sharded=sharded))

    def _watched(self) -> AbstractContextManager[Meter | LimitedTracker]:
        if self._world.on_gpu:
            return _on_gpu(self._world.device)
        first, *others = self._stepping.optimizers
        # Also what is not trained, a teacher say.
        every = nn.ModuleList(outermost.modules())
        return LimitedTracker(every, first, others, sys.maxsize)

    def _joined(self) -> ProbeWorld:
        """The ranks of the script's process group."""
        joined = dist.is_initialized()
        store = _get_default_store() if joined else HashStore()
        rank = dist.get_rank() if joined else 0
        # Not where the parameters lie, which may be the CPU, and only their computing on the GPU.
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        device = (
            torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        )
        return ProbeWorld(
            rank=rank,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            size=dist.get_world_size() if joined else 1,
            host=socket.gethostname(),
            device=device,
            backend=str(dist.get_backend()) if joined else "",
            journal=Journal(self._folder, rank),
            store=PrefixStore("ddoctor", store),
        )

    def _write(self, **changes: Any) -> None:
        self._grown = msgspec.structs.replace(self._grown, **{"trying": None, **changes})
        recorded.write(self._folder, recorded.GROWN, self._grown)

    def _synchronize(self) -> None:
        if self._world.on_gpu:
            torch.cuda.synchronize(self._world.device)


@contextmanager
def _on_gpu(device: torch.device) -> Iterator[Meter]:
    """The peak before the optimizer's step, and the peak in it, from an empty cache on.

    It is not read after each operator: intercepting them would change how compiled or captured code
    runs.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)
    passes: list[int] = []

    def optimizer_begins(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        passes.append(torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)

    meter = Meter()
    hook = register_optimizer_step_pre_hook(optimizer_begins)
    try:
        yield meter
    finally:
        hook.remove()
    after = torch.cuda.memory_stats(device)
    # A scaler leaves out the optimizer's step where it met infinity.
    meter.held = [max(passes, default=0), after["allocated_bytes.all.peak"]]
    meter.reserved = after["reserved_bytes.all.peak"]
    meter.retries = after["num_alloc_retries"] - before["num_alloc_retries"]
