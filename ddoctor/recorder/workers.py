"""The work of a loader, timed where it runs: in its workers, or in the main process.

A forked worker shares memory with the main process and adds its times there. A spawned worker does
not have this memory; its times are missing.
"""

from __future__ import annotations

import mmap
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from ddoctor.evidence.loading import WorkerRandomness
from ddoctor.evidence.steps import HotLine
from ddoctor.proc.run_queue import queued
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.worker_lines import ROOM, WorkerLines, most_frequent

MOST_SOURCES = 6
TOTALS = (
    "fetched",
    "fetch_seconds",
    "fetch_cpu_seconds",
    "collated",
    "collate_seconds",
    "collate_cpu_seconds",
    "queued_seconds",
)
"""Fields of the evidence's Loader, in the order of a slot. There, the MiB that malloc keeps free
follow, and whether random states were seen; then the first state of each generator, and whether it
changed."""
FETCHED, FETCH_SECONDS, FETCH_CPU, COLLATED, COLLATE_SECONDS, COLLATE_CPU, QUEUED = range(7)
FREE, SEEN, STATES = range(7, 10)
SLOT_CELLS = STATES + 2 * MOST_SOURCES
# When the random states are looked at: before the first batch, and whether they changed since.
LOOKS = (1, 2, 4, 8)
# In the main process timing is part of the step: of many batches every fourth tells as much.
ALL_OF_THE_FIRST, EVERY = 64, 4

GENERATORS = ("Generator", "RandomState", "Random")


class Slots:
    """The shared memory of one loader: one slot for the main process, and one for each worker."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.turn = 0
        """Number of batches that the main process has fetched."""
        cells = SLOT_CELLS * (workers + 1)
        self._cells = memoryview(mmap.mmap(-1, 8 * cells)).cast("d")
        self._rooms = memoryview(mmap.mmap(-1, ROOM * (workers + 1)))

    def next_is_timed(self) -> bool:
        """Whether the main process times the next batch that it fetches."""
        self.turn += 1
        return self.turn <= ALL_OF_THE_FIRST or self.turn % EVERY == 0

    def slot(self, number: int) -> Any:
        """The cells of a slot, which has one writer; slot 0 is the main process."""
        return self._cells[number * SLOT_CELLS : (number + 1) * SLOT_CELLS]

    def room(self, number: int) -> Any:
        """The memory for the lines of a worker, numbered as its slot."""
        return self._rooms[number * ROOM : (number + 1) * ROOM]

    def lines(self) -> tuple[HotLine, ...]:
        """The lines at which its workers were sampled, the most frequent first."""
        return most_frequent(self.room(number + 1) for number in range(self.workers))

    def totals(self) -> dict[str, float]:
        """The sums over all slots."""
        return {name: sum(self._cells[place::SLOT_CELLS]) for place, name in enumerate(TOTALS)}

    def malloc_free(self) -> float:
        """MiB that malloc keeps free in its workers together."""
        return float(sum(self._cells[FREE + SLOT_CELLS :: SLOT_CELLS]))

    def randomness(self, sources: Sequence[str]) -> tuple[WorkerRandomness, ...]:
        """The workers' states of each random number generator."""
        return tuple(
            WorkerRandomness(
                worker=worker,
                source=source,
                first=f"{int(cells[place]):08x}",
                used=bool(cells[place + 1]),
            )
            for worker in range(self.workers)
            if (cells := self.slot(worker + 1))[SEEN]
            for place, source in zip(range(STATES, SLOT_CELLS, 2), sources, strict=False)
        )


current: Slots | None = None
"""The slots of the loader whose workers are starting; inside of a worker, of its loader."""
at_work: WorkerLines | None = None
"""Inside of a worker: what samples its lines; None: no batch has begun."""
in_main: Slots | None = None
"""The slots of the loader that the main process fetches for, if it is timed."""


def install() -> None:
    """Time every fetch, and the collate in it."""
    for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
        setattr(fetcher, "fetch", _timed(fetcher.fetch))  # noqa: B010


def sources(dataset: Any) -> tuple[str, ...]:
    """The names of the random number generators that a worker has."""
    return tuple(_generators(dataset))[:MOST_SOURCES]


def _timed(original: Any) -> Any:
    def fetch(this: Any, index: Any) -> Any:
        slots = in_main or current
        if slots is None:
            return original(this, index)
        info = get_worker_info()
        if info is not None and info.id >= slots.workers:
            return original(this, index)
        number = info.id + 1 if info is not None else 0
        cells = slots.slot(number)
        if info is not None and cells[COLLATED] + 1 in LOOKS:
            _look(cells, this.dataset)
        sampled = _sampled(slots, number) if info is not None else None
        collate = _Collate(this.collate_fn)
        this.collate_fn = collate
        began, cpu, waited = perf_counter(), thread_time(), queued() or 0.0
        try:
            batch = original(this, index)
        finally:
            this.collate_fn = collate.function
            if sampled is not None:
                sampled.busy = False
        seconds, cpu = perf_counter() - began, thread_time() - cpu
        cells[FETCHED] += len(index) if hasattr(index, "__len__") else 1
        cells[FETCH_SECONDS] += seconds - collate.seconds
        cells[FETCH_CPU] += cpu - collate.cpu
        cells[COLLATED] += 1
        cells[COLLATE_SECONDS] += collate.seconds
        cells[COLLATE_CPU] += collate.cpu
        cells[QUEUED] += max(0.0, (queued() or 0.0) - waited)
        return batch

    return fetch


@harmless
def _sampled(slots: Slots, number: int) -> WorkerLines:
    """What samples this worker, which now makes a batch."""
    global at_work
    if at_work is None:
        at_work = WorkerLines(slots.room(number), slots.slot(number)[FREE:SEEN])
        at_work.start()
    at_work.busy = True
    return at_work


class _Collate:
    """A collate function with timing."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.seconds = self.cpu = 0.0

    def __call__(self, items: Any) -> Any:
        began, cpu = perf_counter(), thread_time()
        try:
            return self.function(items)
        finally:
            self.seconds += perf_counter() - began
            self.cpu += thread_time() - cpu


@harmless
def _look(cells: Any, dataset: Any) -> None:
    for number, read in enumerate(list(_generators(dataset).values())[:MOST_SOURCES]):
        value: Any = read()
        text = repr(value.tolist() if hasattr(value, "tolist") else value)
        place, state = STATES + 2 * number, float(crc32(text.encode()))
        if not cells[SEEN]:
            cells[place] = state
        elif cells[place] != state:
            cells[place + 1] = 1.0
    cells[SEEN] = 1.0


def _generators(dataset: Any) -> dict[str, Callable[[], object]]:
    """How to read the state of each random number generator that a worker has."""
    numpy = sys.modules.get("numpy")
    held = getattr(dataset, "__dict__", {})
    own = {name: one for name, one in held.items() if type(one).__name__ in GENERATORS}
    return {
        "numpy.random": numpy.random.get_state if numpy is not None else str,
        "random": random.getstate,
        "torch": torch.get_rng_state,
        **{f"dataset.{name}": partial(_state, own[name]) for name in sorted(own)},
    }


def _state(generator: Any) -> object:
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    read: Any = getattr(generator, "getstate", None) or getattr(generator, "get_state", str)
    return read()
