"""DataLoaders: waits of the main thread, settings, and batches delivered."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from threading import get_ident
from time import perf_counter
from types import FrameType
from typing import Any
from weakref import ref
from zlib import crc32

import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as module
from torch.utils.weak import WeakIdKeyDictionary

from ddoctor.recorder import places, trial, workers
from ddoctor.recorder.fingerprints import PRINTED_VALUES, of_dataset, of_items, of_tensors
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.loader_facts import MOST_EPOCHS, Epoch, Seen, described, distributed
from ddoctor.recorder.padding import padding
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.tape import EVALUATION, LOADER
from ddoctor.recorder.timeline import RESTING, Timeline

MOST_LOADERS = 64
FIRST_BATCHES = 8
# An iterator's attribute: its loader, and what is known of that.
OWN = "_ddoctor_own"


class Loaders:
    """Watches every DataLoader."""

    def __init__(self, timeline: Timeline, training: Callable[[], bool | None]) -> None:
        self._timeline = timeline
        self._training = training
        self.seen: MutableMapping[DataLoader[Any], Seen] = WeakIdKeyDictionary()
        self.begun: list[Seen] = []
        """Loaders with an epoch, including those that the script has released."""
        self.at_epoch: list[Callable[[], object]] = []
        """Called where an epoch begins."""
        self.closed = False
        """Whether loaders created from now on do not belong to the script."""

    def install(self) -> None:
        """Hook into the creation of a loader, the start of an epoch, and each batch."""
        workers.install()
        self._install_init()
        self._install_iter()
        self._install_next()

    def end_workers(self) -> None:
        """End the workers of loaders that keep them: no more batches are needed.

        Before 2.13, torch waits at exit for each of them that still runs, up to 5 s, if the
        batches are pinned.
        """
        for loader in list(self.seen):
            if isinstance(loader._iterator, module._MultiProcessingDataLoaderIter):
                iterator: Any = loader._iterator
                iterator._shutdown_workers()

    def malloc_free(self) -> float:
        """MiB that malloc keeps free in all workers together."""
        return sum(one.slots[-1].malloc_free() for one in list(self.seen.values()) if one.slots)

    def _install_init(self) -> None:
        init: Any = DataLoader.__init__

        # Frameworks read its signature.
        @replaces(DataLoader, "__init__")
        def initialise(this: Any, *args: Any, **kwargs: Any) -> None:
            init(this, *args, **trial.loader_settings(args, kwargs))
            if not self.closed:
                self.seen[this] = Seen(_made(this) or "")

    def _install_iter(self) -> None:
        begin = DataLoader.__iter__
        start: Any = module._MultiProcessingDataLoaderIter.__init__

        @replaces(DataLoader, "__iter__")
        def iterate(this: Any) -> Any:
            seen = self.seen.get(this)
            if seen is None or not self._timeline.here():
                return begin(this)
            seen = self._known(this, seen)
            for call in self.at_epoch:
                call()
            began = self._timeline.enter(EVALUATION if self._training() is False else LOADER)
            try:
                iterator = begin(this)
            finally:
                seconds = self._timeline.leave() - began
            sampler = distributed(this)
            if len(seen.epochs) < MOST_EPOCHS:
                seen.epochs.append(Epoch(seconds, getattr(sampler, "epoch", None)))
            seen.epochs[-1].ended = False
            # The loader lives as long as its iterator; with workers that stay it does so anyway.
            setattr(iterator, OWN, (None if this.persistent_workers else this, seen))
            if this.num_workers == 0 and not seen.slots:
                seen.slots.append(workers.Slots(0))
            return iterator

        @replaces(module._MultiProcessingDataLoaderIter, "__init__")
        def start_workers(this: Any, of: Any) -> None:
            seen = self.seen.get(of)
            if seen is not None and len(seen.slots) < MOST_EPOCHS:
                seen.slots.append(workers.Slots(of.num_workers))
                workers.current = seen.slots[-1]
            try:
                start(this, of)
            finally:
                workers.current = None

    def _install_next(self) -> None:
        base: Any = module._BaseDataLoaderIter
        take, index = base.__next__, base._next_index
        timeline, training = self._timeline, self._training

        @replaces(base, "__next__")
        def take_next(this: Any) -> Any:
            known = getattr(this, OWN, None)
            if known is None or get_ident() != timeline.main:
                return take(this)
            seen = known[1]
            epoch = seen.epochs[-1]
            if timeline.busy == RESTING and epoch.batches >= FIRST_BATCHES:
                return _counted(epoch, take, this)
            phase = EVALUATION if training() is False else LOADER
            if this._num_workers == 0 and seen.slots[0].next_is_timed():
                workers.in_main = seen.slots[0]
            began = timeline.enter(phase)
            try:
                batch = take(this)
            except StopIteration:
                epoch.ended = True
                raise
            finally:
                seconds = timeline.leave() - began
                workers.in_main = None
            epoch.batches += 1
            tensors = None
            if epoch.batches <= FIRST_BATCHES:
                tensors = _look_at(seen, epoch, batch)
            elif seen.preparing.changes is None:
                tensors = _looked_into(batch)
            if phase == LOADER:
                timeline.batches += 1
                seen.waits.append((timeline.done, seconds, epoch.batches == 1))
                if get_ident() == timeline.busy:
                    seen.preparing.taken(timeline, tensors)
            return batch

        @replaces(base, "_next_index")
        def next_index(this: Any) -> Any:
            known = getattr(this, OWN, None)
            if known is None:
                return index(this)
            seen = known[1]
            epoch = seen.epochs[-1]
            if timeline.busy == RESTING and epoch.batches >= FIRST_BATCHES:
                return index(this)
            began = perf_counter()
            found = index(this)
            seen.drawing.append(perf_counter() - began)
            if len(epoch.prints["indices"]) < FIRST_BATCHES:
                _note_index(seen, found)
            return found

    def _known(self, loader: DataLoader[Any], seen: Seen) -> Seen:
        """The statistics of a loader that begins an epoch. A loader that is created again for each
        epoch continues those of its predecessor, which is gone."""
        settings = described(loader, seen.name)
        if settings is None or seen.settings is not None:
            return seen
        for before in self.begun:
            if before.made() is None and before.settings == settings:
                seen = before
        if seen not in self.begun and len(self.begun) < MOST_LOADERS:
            self.begun.append(seen)
        seen.settings, seen.made = settings, ref(loader)
        seen.data = of_dataset(loader.dataset) or ""
        seen.fields = of_items(loader.dataset) or {}
        seen.sources = workers.sources(loader.dataset)
        self.seen[loader] = seen
        return seen


def _counted(epoch: Epoch, take: Callable[[Any], Any], iterator: Any) -> Any:
    """The next batch, without timing."""
    try:
        batch = take(iterator)
    except StopIteration:
        epoch.ended = True
        raise
    epoch.batches += 1
    return batch


@harmless
def _look_at(seen: Seen, epoch: Epoch, batch: Any) -> list[torch.Tensor]:
    """All tensors of the batch."""
    tensors = _tensors(batch)
    epoch.prints["values"].append(of_tensors(tensors) or "")
    epoch.prints["labels"].append(_print_labels(tensors) or "")
    seen.batch_bytes = sum(one.numel() * one.element_size() for one in tensors)
    unused = padding(tensors) if len(seen.padding) < FIRST_BATCHES else None
    if unused is not None:
        seen.padding.append(unused.columns)
        seen.padded.append(unused.whole)
    return tensors


@harmless
def _note_index(seen: Seen, index: Any) -> None:
    if seen.settings is not None and seen.settings.kind == "map":
        seen.epochs[-1].prints["indices"].append(f"{crc32(str(index).encode()):08x}")


@harmless
def _made(loader: Any) -> str:
    """The line of the script that creates it, outside of the script's own subclasses."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code.co_name == "__init__":
        if frame.f_locals.get(frame.f_code.co_varnames[0]) is not loader:
            break
        frame = frame.f_back
    user = places.caller(frame)
    return places.shown(user.f_code, user.f_lineno) if user is not None else ""


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        return [one for value in batch.values() for one in _tensors(value)]
    if isinstance(batch, (list, tuple)):
        return [one for value in batch[:16] for one in _tensors(value)]
    return []


_looked_into = harmless(_tensors)


def _told_apart(tensor: torch.Tensor) -> bool:
    """Whether a tensor may hold labels or tokens: integers that differ."""
    values = tensor.detach().reshape(-1)[:PRINTED_VALUES]
    whole = not values.is_floating_point() and not values.is_complex()
    return whole and len(values) > 1 and bool((values != values[0]).any())


@harmless
def _print_labels(tensors: list[torch.Tensor]) -> str | None:
    return of_tensors([one for one in tensors if _told_apart(one)])
