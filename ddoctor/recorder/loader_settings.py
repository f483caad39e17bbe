"""The settings of a DataLoader, as far as they are visible from outside."""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset

from ddoctor.evidence.loading import Loader
from ddoctor.recorder.harmless import harmless


@harmless
def described(loader: Any, name: str) -> Loader:
    """Its settings without any statistics; ``name`` is the line that creates it."""
    sampler = distributed(loader)
    return Loader(
        rank=0,
        host="",
        name=name,
        dataset=type(loader.dataset).__name__,
        kind=kind(loader),  # type: ignore[arg-type]
        items=_length(loader.dataset),
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        batches=_length(loader),
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        context=_context(loader),
        drop_last=loader.drop_last,
        sampler=type(sampler or loader.sampler).__name__,
        shuffle=sampler.shuffle if sampler is not None else None,
        replicas=sampler.num_replicas if sampler is not None else None,
        collate=getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__name__),
    )


def kind(loader: Any) -> str:
    """Whether items have indices (map-style) or not (iterable)."""
    return "iterable" if isinstance(loader.dataset, IterableDataset) else "map"


def distributed(loader: Any) -> DistributedSampler[Any] | None:
    """The sampler that splits the dataset among ranks; None: there is none."""
    for holder in (loader, loader.batch_sampler):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            return sampler
    return None


def _context(loader: Any) -> str:
    context = loader.multiprocessing_context
    if context is None:
        return multiprocessing.get_start_method(allow_none=True) or "fork"
    return str(context.get_start_method())


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None
