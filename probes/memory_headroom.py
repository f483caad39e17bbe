"""How many samples fit each device, and how fast they train: real steps, until one does not fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median

from ddoctor.errors import DoctorError
from ddoctor.evidence.memory_headroom import (
    MARGIN,
    MemoryHeadroom,
    MemoryTrial,
    RankHeadroom,
    SampleUse,
    StepRate,
    Stopped,
)
from ddoctor.harness import MEMORY_SHARE, World
from ddoctor.headroom import devices, work
from ddoctor.headroom.lines import Lines
from ddoctor.headroom.request import Request
from ddoctor.headroom.search import Search
from ddoctor.headroom.training import Training, Use, out_of_memory

ONLY_IF_NAMED = True

# More samples at a time nobody trains with.
MOST = 2**16
# Far below what is taken for a hang.
STEP_SECONDS = 8.0
# Steps that are timed, of each of two sizes.
TIMED = 5
# Of a host's free memory, where devices are played: what else runs there needs some.
HOST_SHARE = 2


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
    sweep = _Sweep(world, request, device)
    failed = [rank for rank, built in enumerate(world.gather(made is not None)) if not built]
    if failed or made is None:
        sweep.trials.append(
            MemoryTrial(micro_batch=0, outcome="out-of-memory", ranks=tuple(failed))
        )
    else:
        sweep.run(made)
    return sweep.told()


class _Sweep:
    def __init__(
        self, world: World, request: Request, device: devices.Played | devices.Gpu
    ) -> None:
        self._world, self._request, self._device = world, request, device
        self._places = world.places()
        self._limits = world.gather(device.limit)
        self._sizes = world.gather((device.total, device.others))
        self._room = world.memory() * MEMORY_SHARE // HOST_SHARE
        self._search = Search(first=request.micro_batch or 1, most=MOST)
        self._stopped: Stopped = "sizes"
        self._uses: dict[int, Sequence[Use]] = {}
        self._rates: list[StepRate] = []
        self._parameters = 0
        self._line: tuple[float, float] | None = None
        self._foretold: int | None = None
        self._safe = 0
        self.trials: list[MemoryTrial] = []

    def run(self, made: work.Work) -> None:
        """Until the largest is known, and how fast it is."""
        model = made.model
        self._parameters = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
        training = Training(self._world, self._device, made)
        while True:
            while (size := self._search.next()) is not None:
                self._take(size, training.alone(size), exchange=False)
                self._foretell(training.lines)
            largest = self._search.largest
            if not largest or self._take(largest, training.together(largest), exchange=True):
                break
        self._line = training.lines.decisive
        self._safe = self._reach(training.lines, (1 - MARGIN) * self._device.limit) or 0
        self._safe = min(self._safe, largest)
        current = self._request.micro_batch or 0
        for size in sorted({current if current <= largest else 0, self._safe or largest} - {0}):
            if size not in self._uses:
                self._take(size, training.together(size), exchange=True)
            if seconds := training.seconds(size, TIMED):
                self._rates.append(StepRate(micro_batch=size, seconds=median(seconds)))

    def _take(self, size: int, used: Sequence[Use | None], *, exchange: bool) -> bool:
        short = tuple(rank for rank, one in enumerate(used) if one is None)
        whole = [one for one in used if one is not None]
        thrashing = tuple(rank for rank, one in enumerate(whole) if one.retries)
        fits = not short and not thrashing
        self._search.record(size, fits=fits)
        if fits:
            self._uses[size] = whole
        else:
            self._uses.pop(size, None)
        self.trials.append(
            MemoryTrial(
                micro_batch=size,
                outcome="fits" if fits else "out-of-memory" if short else "thrashes",
                ranks=short or thrashing,
                exchange=exchange,
            )
        )
        return fits

    def _foretell(self, lines: Lines) -> None:
        """What may fit, by the lines of all ranks, and what may be tried."""
        search, limit = self._search, self._device.limit
        self._foretold = self._reach(lines, limit)
        search.foretell(self._foretold, sure=min(self._world.gather(lines.sure(limit))))
        held = self._reach(lines, self._room)
        bounds: list[tuple[int, Stopped]] = [(MOST, "sizes")]
        if search.largest:
            slowest = max(one.seconds for one in self._uses[search.largest])
            bounds.append((int(search.largest * STEP_SECONDS / slowest), "time"))
            if held is not None and not self._world.on_gpu:
                bounds.append((held, "host-memory"))
        most, self._stopped = min(bounds)
        search.most = max(most, search.largest, 1)

    def _reach(self, lines: Lines, room: float) -> int | None:
        """The largest size that fits by the lines of all ranks, each into as much."""
        # What the allocator has beside what is allocated grows with it.
        used = self._uses[max(self._uses)][self._world.rank] if self._uses else None
        share = used.allocated / used.reserved if used is not None else 1.0
        found = self._world.gather(lines.reach(int(share * room)))
        return min((one for one in found if one is not None), default=None)

    def told(self) -> MemoryHeadroom | None:
        """What came of it, on rank 0."""
        parameters = self._world.gather(self._parameters)
        lines = self._world.gather(self._line)
        if self._world.rank > 0:
            return None
        search = self._search
        stopped = "" if search.too_large is not None or not search.largest else self._stopped
        return MemoryHeadroom(
            workload=self._request.workload,
            played=not self._world.on_gpu,
            current=self._request.micro_batch,
            largest=search.largest,
            safe=self._safe,
            too_large=search.too_large,
            stopped=stopped,
            foretold=self._foretold if stopped else None,
            trials=tuple(self.trials),
            ranks=tuple(
                self._rank(rank, parameters[rank], lines[rank]) for rank in range(self._world.size)
            ),
            rates=tuple(self._rates),
        )

    def _rank(self, rank: int, parameters: int, line: tuple[float, float] | None) -> RankHeadroom:
        total, others = self._sizes[rank]
        return RankHeadroom(
            place=self._places[rank],
            total=total,
            others=others,
            limit=self._limits[rank],
            parameters=parameters,
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
