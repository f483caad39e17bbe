"""The batches of the script's loaders, with more or fewer of their samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from time import perf_counter
from typing import Any

from torch import Tensor, arange
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as module

from ddoctor.recorder.loader_facts import length
from ddoctor.recorder.swaps import replaces


class Batches:
    """The batches of a training's loaders, resized as requested."""

    def __init__(self, training: Callable[[], bool | None]) -> None:
        self._training = training
        self.wanted: int | None = None
        """Samples per batch; None: as many as the loader delivers."""
        self.given = 0
        """The loader's own number of samples per batch."""
        self.epoch: int | None = None
        """Batches per epoch; None: not known."""
        self.taken, self.seconds = 0, 0.0
        """Number of batches taken, and the loaders' seconds for them."""
        self._largest: dict[int, tuple[int, Any, Any]] = {}
        """By the identity of a dataset, the largest batch before any resizing. If samples differ in
        length, all sizes use the same, long ones. The dataset is held with it, so that no later one
        gets its identity."""

    def install(self) -> None:
        """Hook into beginning an epoch, and taking a batch."""
        base: Any = module._BaseDataLoaderIter
        take, begin = base.__next__, DataLoader.__iter__

        @replaces(base, "__next__")
        def take_next(this: Any) -> Any:
            began = perf_counter()
            # What a dataset computes is not on the device.
            with _disable_current_modes():
                batch = take(this)
            self.seconds += perf_counter() - began
            if self._training() is False:
                return batch
            self.taken += 1
            if not self.given:
                self.given = samples(batch)
                self.epoch = (length(this._index_sampler) or 0) * self.given or None
            if self.wanted is None:
                with _disable_current_modes():
                    self._keep(this._dataset, batch)
                return batch
            _, known, _ = self._largest.get(id(this._dataset), (0, batch, None))
            return of_size(known, self.wanted)

        @replaces(DataLoader, "__iter__")
        def iterate(this: Any) -> Any:
            with _disable_current_modes():  # workers that are started here would inherit them
                return begin(this)

    def _keep(self, dataset: Any, batch: Any) -> None:
        count = _numbers(batch)
        if id(dataset) not in self._largest or count > self._largest[id(dataset)][0]:
            # A copy: the script may take entries out of its own.
            self._largest[id(dataset)] = count, of_size(batch, samples(batch)), dataset


def _numbers(batch: Any) -> int:
    """Numbers in its tensors."""
    return batch.numel() if isinstance(batch, Tensor) else sum(map(_numbers, _fields(batch)))


def samples(batch: Any) -> int:
    """Number of samples: the first dimension of the first tensor; 0: it has none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    return next(filter(None, map(samples, _fields(batch))), 0)


def _fields(batch: Any) -> Sequence[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    return batch if isinstance(batch, list | tuple) else ()


def of_size(batch: Any, wanted: int) -> Any:
    """The samples repeated or cut off until the batch has the requested size.

    A field of the batch is a tensor or list with one entry per sample. Everything else stays
    unchanged.
    """
    known = samples(batch)
    return _resized(batch, known, wanted) if known else batch


def _resized(batch: Any, known: int, wanted: int) -> Any:
    def inner(one: Any) -> Any:
        return _resized(one, known, wanted)

    if isinstance(batch, Tensor):
        if not batch.dim() or len(batch) != known:
            return batch
        return batch.index_select(0, arange(wanted, device=batch.device) % known)
    if isinstance(batch, MutableMapping):
        # Of the kind that it was: BatchEncoding has methods that trainings call.
        resized = copy.copy(batch)
        resized.update({name: inner(value) for name, value in batch.items()})
        return resized
    if isinstance(batch, list | tuple):
        fields = any(samples(one) == known for one in batch)
        if fields or len(batch) != known:
            return _like(batch, [inner(one) for one in batch])
        return _like(batch, [batch[number % known] for number in range(wanted)])
    return batch


def _like(batch: Any, entries: list[Any]) -> Any:
    kind: Callable[..., Any] = type(batch)
    return kind(*entries) if hasattr(batch, "_fields") else kind(entries)
