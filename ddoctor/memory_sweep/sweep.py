"""The state of a sweep, the same on every rank: the trials so far, and the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from torch import nn

from ddoctor.evidence.memory_headroom import (
    MARGIN,
    MemoryHeadroom,
    MemoryTrial,
    RankHeadroom,
    SampleUse,
    StepRate,
    Stopped,
)
from ddoctor.memory_sweep.devices import DeviceMemory
from ddoctor.memory_sweep.search import MemoryLines, Search
from ddoctor.memory_sweep.training import Use
from ddoctor.probing.world import MEMORY_SHARE, ProbeWorld

# No training uses larger micro-batches.
MOST = 2**16
# Seconds, far below the timeout of a hang.
STEP_SECONDS = 8.0
TIMED = 5
"""Number of timed steps of each of two sizes."""
# Share of a host's free memory for simulated devices: other processes need some.
HOST_SHARE = 2


class MemorySweep(Search):
    """The state of a sweep; all ranks call each method at the same time."""

    def __init__(
        self,
        world: ProbeWorld,
        device: DeviceMemory,
        lines: MemoryLines,
        *,
        workload: str,
        current: int | None,
        first: int | None = None,
        epoch: int | None = None,
        too_large: Iterable[int] = (),
    ) -> None:
        """Start a sweep.

        ``first``: the size to begin with, if it is not ``current``. ``epoch``: samples of this rank
        per epoch, if known. ``too_large``: a size that is known not to fit.
        """
        self._world, self._device, self._lines = world, device, lines
        self._workload, self._current = workload, current
        self._places = world.places()
        self._room = world.memory() * MEMORY_SHARE // HOST_SHARE
        bounds: list[tuple[int, Stopped]] = [(MOST, "sizes")]
        bounds += [(one, "data") for one in world.gather(epoch) if one is not None]
        self._most = min(bounds)
        super().__init__(first=first or current or 1, most=self._most[0])
        for size in too_large:
            self.record(size, fits=False)
        self._stopped = self._most[1]
        self._uses: dict[int, Sequence[Use]] = {}
        self._rates: list[StepRate] = []
        self._trials: list[MemoryTrial] = []
        self._parameters = 0

    def weigh(self, models: Iterable[nn.Module]) -> None:
        """Measure the parameters and buffers of this rank."""
        tensors: Iterable[Any] = (
            one for model in models for one in (*model.parameters(), *model.buffers())
        )
        # Of sharded tensors, its own shard.
        self._parameters = sum(getattr(one, "_local_tensor", one).nbytes for one in tensors)

    @property
    def stopped(self) -> Stopped:
        """Return why no size was too large."""
        settled = self.too_large is not None or not self.largest
        return "" if settled else self._stopped

    def known(self, size: int) -> bool:
        """Whether the memory of a size is known."""
        return size in self._uses

    def fails(self, ranks: Sequence[int]) -> None:
        """Record that not even model and optimizer fit on these ranks."""
        self._trials.append(MemoryTrial(micro_batch=0, outcome="out-of-memory", ranks=tuple(ranks)))

    def take(self, size: int, used: Sequence[Use | None], *, exchange: bool) -> bool:
        """Record a trial by rank (None: out of memory); return whether the size fits."""
        short = tuple(rank for rank, one in enumerate(used) if one is None)
        whole = [one for one in used if one is not None]
        thrashing = tuple(rank for rank, one in enumerate(whole) if one.retries)
        fits = not short and not thrashing
        self.record(size, fits=fits)
        if fits:
            self._uses[size] = whole
        else:
            self._uses.pop(size, None)
        self._trials.append(
            MemoryTrial(
                micro_batch=size,
                outcome="fits" if fits else "out-of-memory" if short else "thrashes",
                ranks=short or thrashing,
                exchange=exchange,
            )
        )
        return fits

    def extrapolate(self) -> None:
        """Forecast by the lines of all ranks what may fit, and limit the trials."""
        limit = self._device.limit
        self.foretell(self._reach(limit), sure=min(self._world.gather(self._lines.sure(limit))))
        held = self._reach(self._room)
        bounds = [self._most]
        if self.largest:
            slowest = max(one.seconds for one in self._uses[self.largest])
            bounds.append((int(self.largest * STEP_SECONDS / slowest), "time"))
            if held is not None and not self._world.on_gpu:
                bounds.append((held, "host-memory"))
        most, self._stopped = min(bounds)
        self.most = max(most, self.largest, 1)

    def safe(self) -> int:
        """Return the largest size that leaves ``MARGIN`` on every rank."""
        return min(self._reach((1 - MARGIN) * self._device.limit) or 0, self.largest)

    def rate(self, size: int, seconds: float) -> None:
        """Record the seconds of the median step at this size."""
        self._rates.append(StepRate(micro_batch=size, seconds=seconds))

    def result(self) -> MemoryHeadroom:
        """Return the result of the sweep."""
        rank, device, line = self._world.rank, self._device, self._lines.decisive
        own = RankHeadroom(
            place=self._places[rank],
            total=device.total,
            others=device.others,
            limit=device.limit,
            parameters=self._parameters,
            fixed=None if line is None else max(0, round(line[0])),
            per_sample=None if line is None else round(line[1]),
            uses=tuple(
                SampleUse(
                    micro_batch=size,
                    allocated=used[rank].allocated,
                    reserved=used[rank].reserved,
                )
                for size, used in sorted(self._uses.items())
            ),
        )
        ranks = self._world.gather(msgspec.to_builtins(own))
        return MemoryHeadroom(
            workload=self._workload,
            played=not self._world.on_gpu,
            current=self._current,
            largest=self.largest,
            safe=self.safe(),
            too_large=self.too_large,
            stopped=self.stopped,
            foretold=self._foretold if self.stopped else None,
            trials=tuple(self._trials),
            ranks=msgspec.convert(ranks, tuple[RankHeadroom, ...]),
            rates=tuple(self._rates),
        )

    def _reach(self, room: float) -> int | None:
        """Return the largest size that fits ``room`` of each limit, by the lines of all ranks."""
        # The allocator's unused memory grows with the allocated memory.
        used = self._uses[max(self._uses)][self._world.rank] if self._uses else None
        share = used.allocated / used.reserved if used is not None else 1.0
        found = self._world.gather(self._lines.reach(int(share * room)))
        return min((one for one in found if one is not None), default=None)
