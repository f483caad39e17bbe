"""A batch as a loader gives it, with more of its samples, or fewer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor, arange


def samples(batch: Any) -> int:
    """How many there are: the first dimension of its first tensor; 0: it has none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next(filter(None, map(samples, batch)), 0)
    return 0


def of_size(batch: Any, wanted: int) -> Any:
    """The same samples over and over, or the first of them, until there are so many.

    What has as many entries as there are samples is a field of the batch: tensors, and lists of
    texts, say. All else stays as it is.
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
