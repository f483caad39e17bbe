"""The work of a loader, timed where it runs: in its workers, or in the main process.

A forked worker shares memory with the main process and adds its times there. A spawned worker does
not have this memory; its times are missing.
"""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Any
from zlib import crc32

from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from ddoctor.evidence.loading import WorkerRandomness
from ddoctor.recorder.harmless import harmless

MOST_SOURCES = 6
FIELDS = ("items", "item_seconds", "item_cpu", "batches", "collate_seconds", "collate_cpu", "seen")
SLOT = struct.Struct(f"={len(FIELDS) + 2 * MOST_SOURCES}d")
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
        self._memory = mmap.mmap(-1, SLOT.size * (workers + 1))

    def next_is_timed(self) -> bool:
        """Whether the main process times the next batch that it fetches."""
        self.turn += 1
        return self.turn <= ALL_OF_THE_FIRST or self.turn % EVERY == 0

    def read(self, number: int) -> list[float]:
        """The numbers of a slot; slot 0 is the main process."""
        return list(SLOT.unpack_from(self._memory, number * SLOT.size))

    def write(self, number: int, values: Sequence[float]) -> None:
        """Change a slot; each has one writer."""
        SLOT.pack_into(self._memory, number * SLOT.size, *values)

    def totals(self) -> dict[str, float]:
        """The sums over all slots."""
        rows = [self.read(number) for number in range(self.workers + 1)]
        return {name: sum(row[place] for row in rows) for place, name in enumerate(FIELDS)}

    def randomness(self, sources: Sequence[str]) -> tuple[WorkerRandomness, ...]:
        """The workers' states of each random number generator."""
        found = []
        for worker in range(self.workers):
            row = self.read(worker + 1)
            if not row[FIELDS.index("seen")]:
                continue
            for number, source in enumerate(sources[:MOST_SOURCES]):
                first, used = row[len(FIELDS) + 2 * number : len(FIELDS) + 2 * number + 2]
                found.append(
                    WorkerRandomness(
                        worker=worker, source=source, first=f"{int(first):08x}", used=bool(used)
                    )
                )
        return tuple(found)


current: Slots | None = None
"""The slots of the loader whose workers are starting; inside of a worker, of its loader."""
in_main: Slots | None = None
"""The slots of the loader that the main process fetches for, if it is timed."""


def install() -> None:
    """Time every fetch, and the collate in it."""
    for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
        _install(fetcher)


def sources(dataset: Any) -> tuple[str, ...]:
    """The names of the random number generators that a worker has."""
    own = [f"dataset.{name}" for name in sorted(_generators(dataset))]
    return ("numpy.random", "random", "torch", *own)[:MOST_SOURCES]


def _install(fetcher: Any) -> None:
    original: Callable[..., Any] = fetcher.fetch

    def fetch(this: Any, index: Any) -> Any:
        slots = in_main or current
        if slots is None:
            return original(this, index)
        info = get_worker_info()
        if info is not None and info.id >= slots.workers:
            return original(this, index)
        number = info.id + 1 if info is not None else 0
        row = slots.read(number)
        if info is not None and row[FIELDS.index("batches")] + 1 in LOOKS:
            _look(row, this.dataset)
        collate = _Timed(this.collate_fn)
        this.collate_fn = collate
        began, cpu = perf_counter(), thread_time()
        try:
            batch = original(this, index)
        finally:
            this.collate_fn = collate.function
        seconds, cpu = perf_counter() - began, thread_time() - cpu
        row[0] += len(index) if hasattr(index, "__len__") else 1
        row[1] += seconds - collate.seconds
        row[2] += cpu - collate.cpu
        row[3] += 1
        row[4] += collate.seconds
        row[5] += collate.cpu
        slots.write(number, row)
        return batch

    fetcher.fetch = fetch


class _Timed:
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
def _look(row: list[float], dataset: Any) -> None:
    first = not row[FIELDS.index("seen")]
    for number, state in enumerate(_states(dataset)[:MOST_SOURCES]):
        place = len(FIELDS) + 2 * number
        if first:
            row[place] = state
        elif row[place] != state:
            row[place + 1] = 1.0
    row[FIELDS.index("seen")] = 1.0


def _states(dataset: Any) -> list[float]:
    import sys

    import torch

    numpy = sys.modules.get("numpy")
    states = [
        repr(numpy.random.get_state()) if numpy is not None else "",
        repr(random.getstate()),
        repr(torch.get_rng_state().tolist()),
    ]
    own = _generators(dataset)
    states += [_state(own[name]) for name in sorted(own)]
    return [float(crc32(state.encode())) for state in states]


def _generators(dataset: Any) -> dict[str, Any]:
    """The random number generators that a dataset holds."""
    held = getattr(dataset, "__dict__", {})
    return {name: value for name, value in held.items() if type(value).__name__ in GENERATORS}


def _state(generator: Any) -> str:
    if hasattr(generator, "bit_generator"):
        return repr(generator.bit_generator.state)
    read = getattr(generator, "getstate", None) or getattr(generator, "get_state", None)
    if read is None:
        return ""
    state = read()
    return repr(state.tolist() if hasattr(state, "tolist") else state)
