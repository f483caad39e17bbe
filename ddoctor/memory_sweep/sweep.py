"""What a sweep has found so far, alike on every rank: what was tried, and what to try next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ddoctor.evidence.memory_headroom import (
    MARGIN,
    MemoryHeadroom,
    MemoryTrial,
    RankHeadroom,
    SampleUse,
    StepRate,
    Stopped,
)
from ddoctor.memory_sweep.lines import MemoryLines
from ddoctor.memory_sweep.search import Search
from ddoctor.memory_sweep.training import Use
from ddoctor.probing.world import MEMORY_SHARE

if TYPE_CHECKING:
    from torch import nn

    from ddoctor.memory_sweep.devices import GpuMemory, SimulatedMemory
    from ddoctor.probing.world import ProbeWorld

# More samples at a time nobody trains with.
MOST = 2**16
# Far below what is taken for a hang.
STEP_SECONDS = 8.0
TIMED = 5
"""Steps that are timed, of each of two sizes."""
# Of a host's free memory, where devices are played: what else runs there needs some.
HOST_SHARE = 2


class MemorySweep:
    """Each method is called by all ranks, at the same time."""

    def __init__(
        self,
        world: ProbeWorld,
        device: SimulatedMemory | GpuMemory,
        lines: MemoryLines,
        *,
        workload: str,
        current: int | None,
        first: int | None = None,
        epoch: int | None = None,
        too_large: Iterable[int] = (),
    ) -> None:
        """``first``: the size to begin at, if that is not the ``current`` one; ``epoch``: samples
        that this rank has in one, if that is known; ``too_large``: what is known not to fit."""
        self._world, self._device, self._lines = world, device, lines
        self._workload, self._current = workload, current
        self._places = world.places()
        self._limits = world.gather(device.limit)
        self._sizes = world.gather((device.total, device.others))
        self._room = world.memory() * MEMORY_SHARE // HOST_SHARE
        bounds: list[tuple[int, Stopped]] = [(MOST, "sizes")]
        bounds += [(one, "data") for one in world.gather(epoch) if one is not None]
        self._most = min(bounds)
        self._search = Search(first=first or current or 1, most=self._most[0])
        for size in too_large:
            self._search.record(size, fits=False)
        self._stopped = self._most[1]
        self._uses: dict[int, Sequence[Use]] = {}
        self._rates: list[StepRate] = []
        self._trials: list[MemoryTrial] = []
        self._parameters: Sequence[int] = [0] * world.size
        self._foretold: int | None = None

    def weigh(self, models: Iterable[nn.Module]) -> None:
        """The parameters and buffers of each rank."""
        tensors: Iterable[Any] = (
            one for model in models for one in (*model.parameters(), *model.buffers())
        )
        # Of what is sharded, its own part.
        own = sum(getattr(one, "_local_tensor", one).nbytes for one in tensors)
        self._parameters = self._world.gather(own)

    @property
    def largest(self) -> int:
        """The largest size that was seen to fit; 0: none."""
        return self._search.largest

    @property
    def too_large(self) -> int | None:
        """The smallest that was seen not to fit; None: all fitted."""
        return self._search.too_large

    @property
    def stopped(self) -> Stopped:
        """Why none was too large."""
        settled = self.too_large is not None or not self.largest
        return "" if settled else self._stopped

    def next(self) -> int | None:
        """The size to try; None: it is settled, or as good as settled."""
        return self._search.next()

    def known(self, size: int) -> bool:
        """Whether what a size takes is known."""
        return size in self._uses

    def fails(self, ranks: Sequence[int]) -> None:
        """Not even the model and its optimizer could be made on these ranks."""
        self._trials.append(MemoryTrial(micro_batch=0, outcome="out-of-memory", ranks=tuple(ranks)))

    def take(self, size: int, used: Sequence[Use | None], *, exchange: bool) -> bool:
        """What came of a trial, by rank (None: it ran out of memory); whether the size fits."""
        short = tuple(rank for rank, one in enumerate(used) if one is None)
        whole = [one for one in used if one is not None]
        thrashing = tuple(rank for rank, one in enumerate(whole) if one.retries)
        fits = not short and not thrashing
        self._search.record(size, fits=fits)
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

    def foretell(self) -> None:
        """What may fit, by the lines of all ranks, and what may be tried."""
        search, limit = self._search, self._device.limit
        self._foretold = self._reach(limit)
        search.foretell(self._foretold, sure=min(self._world.gather(self._lines.sure(limit))))
        held = self._reach(self._room)
        bounds = [self._most]
        if search.largest:
            slowest = max(one.seconds for one in self._uses[search.largest])
            bounds.append((int(search.largest * STEP_SECONDS / slowest), "time"))
            if held is not None and not self._world.on_gpu:
                bounds.append((held, "host-memory"))
        most, self._stopped = min(bounds)
        search.most = max(most, search.largest, 1)

    def safe(self) -> int:
        """The largest size that leaves ``MARGIN`` on every rank."""
        return min(self._reach((1 - MARGIN) * self._device.limit) or 0, self._search.largest)

    def rate(self, size: int, seconds: float) -> None:
        """Of the median step at this size."""
        self._rates.append(StepRate(micro_batch=size, seconds=seconds))

    def told(self) -> MemoryHeadroom:
        """What came of it."""
        lines = self._world.gather(self._lines.decisive)
        safe = self.safe()
        return MemoryHeadroom(
            workload=self._workload,
            played=not self._world.on_gpu,
            current=self._current,
            largest=self.largest,
            safe=safe,
            too_large=self.too_large,
            stopped=self.stopped,
            foretold=self._foretold if self.stopped else None,
            trials=tuple(self._trials),
            ranks=tuple(self._rank(rank, lines[rank]) for rank in range(self._world.size)),
            rates=tuple(self._rates),
        )

    def _reach(self, room: float) -> int | None:
        """The largest size that fits by the lines of all ranks, each into as much."""
        # What the allocator has beside what is allocated grows with it.
        used = self._uses[max(self._uses)][self._world.rank] if self._uses else None
        share = used.allocated / used.reserved if used is not None else 1.0
        found = self._world.gather(self._lines.reach(int(share * room)))
        return min((one for one in found if one is not None), default=None)

    def _rank(self, rank: int, line: tuple[float, float] | None) -> RankHeadroom:
        total, others = self._sizes[rank]
        return RankHeadroom(
            place=self._places[rank],
            total=total,
            others=others,
            limit=self._limits[rank],
            parameters=self._parameters[rank],
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
