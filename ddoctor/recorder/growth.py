"""The script's own training, with more and more samples in the batches that its loaders give.

What it does with a batch is its own affair, and stays so: its forward pass, its loss, its exchange
of gradients. A size is agreed on by all ranks between two steps, and held for some of them.

A GPU without memory left ends the script, as it would without ddoctor: who started it tells that
from what is written down here, and may start it once more. On CPU tensors, which are counted
against a size that was stated, nothing ends.
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
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as module

from ddoctor.forecast.model.operators import Rationed
from ddoctor.harness import World
from ddoctor.headroom import devices
from ddoctor.headroom.devices import Meter
from ddoctor.headroom.lines import Lines
from ddoctor.headroom.request import Request
from ddoctor.headroom.sweep import TIMED, Sweep
from ddoctor.headroom.training import Use
from ddoctor.journal import Journal
from ddoctor.recorder import batches, outermost, recorded
from ddoctor.recorder.outermost import Outermost
from ddoctor.recorder.stepping import Stepping

# The optimizer has its states, and DDP its buckets in the order of the backward pass.
SETTLED_STEPS = 3
# A loader that is a batch ahead, as accelerate's, has one of the size before.
AHEAD_STEPS = 2
# By name, since they have lain in several places of torch.
SHARDED = {"FSDPModule", "FullyShardedDataParallel"}
# What there is of a step until the next is seen in the first of them: what the script keeps, its
# loss say, and DDP's buckets.
WATCHED_STEPS = 2


class Growth:
    """One rank's part."""

    def __init__(
        self, folder: Path, request: Request, stepping: Stepping, models: Outermost
    ) -> None:
        self._folder, self._request = folder, request
        self._stepping, self._models = stepping, models
        self._wanted: int | None = None
        """Samples of a batch; None: as many as the loader gives."""
        self._given = 0
        """How many it gave at first."""
        self._epoch: int | None = None
        """In an epoch; None: it does not tell."""
        self._loading, self._taken = 0.0, 0
        """Seconds that its loaders took, and for how many batches."""
        self._grown = recorded.Grown()
        self._course = self._grow()
        self._due = 0
        """The step before which it goes on."""

    def install(self) -> None:
        """Hook into loaders, and be called between steps."""
        base: Any = module._BaseDataLoaderIter
        loader: Any = DataLoader
        take, begin = base.__next__, loader.__iter__

        def take_next(this: Any) -> Any:
            began = perf_counter()
            # What a dataset computes is not on the device.
            with _disable_current_modes():
                batch = take(this)
            self._loading += perf_counter() - began
            if self._models.training() is False:
                return batch
            self._taken += 1
            if not self._given:
                self._given = batches.samples(batch)
                self._epoch = _length(this._index_sampler) * self._given or None
            return batch if self._wanted is None else batches.of_size(batch, self._wanted)

        def iterate(this: Any) -> Any:
            with _disable_current_modes():  # workers that are started here would inherit them
                return begin(this)

        base.__next__, loader.__iter__ = take_next, iterate
        self._stepping.at_step.append(self._between_steps)

    def expected(self, error: BaseException) -> bool:
        """Whether this is the end of a size that was tried."""
        return self._grown.trying is not None and isinstance(error, torch.cuda.OutOfMemoryError)

    def _between_steps(self, number: int) -> int:
        if number < self._due:
            return self._due  # another one wanted to be called
        try:
            self._due = number + next(self._course)
            return self._due
        except StopIteration:
            pass
        except Exception as error:  # it is told, and the turn is over
            self._write(why=str(error) or repr(error))
        self._stepping.stop()

    def _grow(self) -> Iterator[int]:
        """Yields how many steps are to pass."""
        yield SETTLED_STEPS
        if not self._given:
            self._write(
                why="no DataLoader of torch's gave the batches: say what is trained by "
                "`-m ddoctor.probe memory_headroom --workload package.module:factory`"
            )
            return
        world = self._world()
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
        device = devices.device(world, self._request.memory_of(world.local_rank, local_size))
        lines = Lines()
        current = min(world.gather(self._given))
        sweep = Sweep(
            world,
            device,
            lines,
            workload=Path(sys.argv[0]).name,
            current=current,
            first=self._request.micro_batch,
            epoch=self._epoch,
            too_large=self._request.too_large,
        )
        sweep.weigh(self._models.roots.values())
        self._tell(sweep)
        while (size := sweep.next()) is not None:
            yield from self._tried(size, world, device, lines, sweep)
        safe = sweep.safe()
        for size in sorted({current if current <= sweep.largest else 0, safe} - {0}):
            if not sweep.known(size):
                yield from self._tried(size, world, device, lines, sweep)
            yield from self._timed(size, world, sweep)
        self._tell(sweep)

    def _tried(
        self,
        size: int,
        world: World,
        device: devices.Played | devices.Gpu,
        lines: Lines,
        sweep: Sweep,
    ) -> Iterator[int]:
        self._begin(size)
        yield AHEAD_STEPS
        with self._watched(world) as meter:
            began = perf_counter()
            yield WATCHED_STEPS
            self._synchronize(world)
            seconds = (perf_counter() - began) / WATCHED_STEPS
        most = max(meter.held)
        lines.record(size, meter.held)
        mine = Use(most, meter.reserved, meter.retries, seconds)
        fits = most <= device.limit
        rows = world.gather(list(mine) if fits else None)
        used = [None if row is None else Use(*row) for row in rows]
        sweep.take(size, used, exchange=True)
        sweep.foretell()
        self._tell(sweep)

    def _tell(self, sweep: Sweep) -> None:
        kinds = {
            kind.__name__
            for root in self._models.roots.values()
            for one in root.modules()
            for kind in type(one).__mro__
        }
        self._write(
            headroom=msgspec.structs.replace(sweep.told(), sharded=not SHARDED.isdisjoint(kinds))
        )

    def _begin(self, size: int) -> None:
        self._wanted = size
        self._write(trying=size)

    def _timed(self, size: int, world: World, sweep: Sweep) -> Iterator[int]:
        self._begin(size)
        yield AHEAD_STEPS
        seconds, self._taken = [], 0
        for _ in range(TIMED):
            self._synchronize(world)
            began, self._loading = perf_counter(), 0.0
            yield 1
            self._synchronize(world)
            seconds.append(max(world.gather(perf_counter() - began - self._loading)))
        # Where gradients are accumulated, a step has several.
        sweep.rate(size, median(seconds) * TIMED / max(self._taken, 1))

    def _watched(self, world: World) -> AbstractContextManager[Meter]:
        return _on_gpu(world.device) if world.on_gpu else self._on_cpu()

    @contextmanager
    def _on_cpu(self) -> Iterator[Meter]:
        first, *others = self._stepping.optimizers
        # Also what is not trained, a teacher say.
        tracker = Rationed(nn.ModuleList(outermost.modules()), first, others, sys.maxsize)
        meter = Meter()
        with tracker:
            yield meter
        meter.held, meter.reserved = tracker.held, max(tracker.held)

    def _world(self) -> World:
        """The ranks as the script has joined them."""
        joined = dist.is_available() and dist.is_initialized()
        store = _get_default_store() if joined else HashStore()
        rank = dist.get_rank() if joined else 0
        device = next(
            one.device for root in self._models.roots.values() for one in root.parameters()
        )
        return World(
            rank=rank,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            size=dist.get_world_size() if joined else 1,
            host=socket.gethostname(),
            device=device,
            backend=str(dist.get_backend()) if joined else "",
            data=Path(),
            nccl_output=None,
            journal=Journal(self._folder, rank),
            share_of_time=1.0,
            burn=0.0,
            headroom=None,
            store=PrefixStore("ddoctor", store),
        )

    def _write(self, **changes: Any) -> None:
        self._grown = msgspec.structs.replace(self._grown, **{"trying": None, **changes})
        recorded.write(self._folder, recorded.GROWN, self._grown)

    @staticmethod
    def _synchronize(world: World) -> None:
        if world.on_gpu:
            torch.cuda.synchronize(world.device)


def _length(batch_sampler: Any) -> int:
    """Batches of an epoch; 0: it does not tell."""
    try:
        return len(batch_sampler)
    except (TypeError, NotImplementedError):
        return 0


@contextmanager
def _on_gpu(device: torch.device) -> Iterator[Meter]:
    """From an empty cache on: the most before the optimizer's step, and in it.

    Not after each operator, for which all of them would have to be caught: what is compiled or
    captured would run otherwise.
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
    meter.held = [max(passes), after["allocated_bytes.all.peak"]]
    meter.reserved = after["reserved_bytes.all.peak"]
    meter.retries = after["num_alloc_retries"] - before["num_alloc_retries"]
