"""What is known of a DataLoader: its settings as visible from outside, and its statistics."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Literal, TypeAlias

import torch
from msgspec.structs import replace
from torch.utils.data import DistributedSampler, IterableDataset

from ddoctor.evidence.loading import FirstBatches, Loader
from ddoctor.recorder import workers
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.recorded import LoaderFacts
from ddoctor.recorder.tape import REST
from ddoctor.recorder.timeline import Timeline

MOST_BATCHES = 20_000
MOST_EPOCHS = 64
By = Literal["indices", "values", "labels"]
Given: TypeAlias = tuple[set[int], set[tuple[torch.Size, torch.dtype]]]
"""The storages, shapes and types of a batch's tensors, which are not kept alive."""


class Preparing:
    """The batches of one loader, on their way to the model."""

    def __init__(self) -> None:
        self.times: deque[tuple[int, float]] = deque(maxlen=MOST_BATCHES)
        """Step and seconds of each batch that the main thread works on."""
        self.changes: bool | None = None
        """Whether the model gets other tensors than the loader gave; None: not seen yet."""
        self._given: Given | None = None
        self._held: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] = (), ()
        """The batch and the one before, of the first ones: no other gets their place."""
        self._before: Given | None = None
        """Those of the batch before: a loop may take batches one ahead, as accelerate does."""
        self._rest = 0.0
        self.reached = False
        """Whether the model got one of its batches unchanged, in the first calls."""

    def taken(self, timeline: Timeline, tensors: Sequence[torch.Tensor] | None) -> None:
        """A batch came; ``tensors``: all that it holds, None: it is not looked into."""
        self._held = self._held[1], tensors or ()
        if self not in timeline.feeding:
            timeline.feeding.append(self)
        self._before = _given(self._held[0])
        if timeline.phase != REST or (tensors is None and not self.changes):
            return
        self._given = None if tensors is None else _given(tensors)
        self._rest = timeline.seconds[REST] + perf_counter() - timeline.last
        timeline.preparing = self

    def arrived(self, timeline: Timeline, tensors: Sequence[torch.Tensor]) -> None:
        """The model is called with these, and its phase has begun."""
        timeline.preparing = None
        if self._given is not None:
            batches = [one for one in (self._given, self._before) if one is not None]
            self.changes = bool(tensors) and not any(
                _came_from(batch, one) for batch in batches for one in tensors
            )
        self._note(timeline)

    def reach(self, tensors: Sequence[torch.Tensor]) -> None:
        """The model gets these for training, of whichever loader."""
        batches = [given for held in self._held if held and (given := _given(held)) is not None]
        self.reached = self.reached or any(
            _came_from(batch, one) for batch in batches for one in tensors
        )

    def used(self, timeline: Timeline) -> None:
        """The model is called without training, say to generate: what follows may need its answer,
        and no worker can do it."""
        timeline.preparing = None
        self._note(timeline)

    def _note(self, timeline: Timeline) -> None:
        if self.changes:
            seconds = timeline.seconds[REST] - self._rest
            self.times.append((timeline.done, max(0.0, seconds)))


@harmless
def _given(tensors: Sequence[torch.Tensor]) -> Given:
    """None where one has no storage, say a sparse tensor."""
    places = {one.untyped_storage().data_ptr() for one in tensors}
    return places, {(one.shape, one.dtype) for one in tensors}


def _came_from(given: Given, tensor: torch.Tensor) -> bool:
    """Whether it is one of them, a view of one, or may be its copy on a device."""
    places, kinds = given
    if tensor.device.type == "cpu":
        return tensor.untyped_storage().data_ptr() in places
    return (tensor.shape, tensor.dtype) in kinds


class Epoch:
    """One pass over a loader."""

    def __init__(self, start: float, seed: int | None) -> None:
        self.start = start
        self.seed = seed
        """The last argument of set_epoch."""
        self.batches = 0
        self.ended = False
        self.prints: dict[By, list[str]] = {"indices": [], "values": [], "labels": []}
        """Fingerprints of the first batches."""


class Seen:
    """The statistics of one loader."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: Loader | None = None
        """Its settings; None: no epoch has begun."""
        self.data = ""
        self.fields: Mapping[str, tuple[int, int]] = {}
        """As in the evidence's Loader, both."""
        self.sources: Sequence[str] = ()
        """The random number generators of its dataset."""
        self.made: Callable[[], object] = lambda: None
        """The loader itself while the script holds it."""
        self.waits: deque[tuple[int, float, bool]] = deque(maxlen=MOST_BATCHES)
        """As in LoaderFacts."""
        self.drawing: deque[float] = deque(maxlen=MOST_BATCHES)
        """Seconds of the sampler for the indices of each batch."""
        self.preparing = Preparing()
        self.epochs: list[Epoch] = []
        self.slots: list[workers.Slots] = []
        self.batch_bytes: int | None = None
        self.padding: list[float] = []
        self.padded: list[float] = []
        """As in the evidence's Loader."""


@harmless
def described(loader: Any, name: str) -> Loader:
    """Its settings without any statistics; ``name`` is the line that creates it."""
    sampler = distributed(loader)
    context = loader.multiprocessing_context or multiprocessing
    return Loader(
        rank=0,
        host="",
        name=name,
        dataset=type(loader.dataset).__name__,
        kind="iterable" if isinstance(loader.dataset, IterableDataset) else "map",
        items=length(loader.dataset),
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        batches=length(loader),
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        context=context.get_start_method(allow_none=True) or "fork",
        sampler=type(sampler or loader.sampler).__name__,
        shuffle=sampler.shuffle if sampler is not None else None,
        replicas=sampler.num_replicas if sampler is not None else None,
        collate=getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__name__),
    )


def distributed(loader: Any) -> DistributedSampler[Any] | None:
    """The sampler that splits the dataset among ranks; None: there is none."""
    for holder in (loader, loader.batch_sampler):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            return sampler
    return None


def length(sized: Any) -> int | None:
    """None: it has none, or does not know it."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def loading(seen: Iterable[Seen]) -> Iterator[LoaderFacts]:
    """Each loader that fed the training."""
    for one in seen:
        if one.waits and one.settings is not None:
            yield LoaderFacts(
                loader=_loader(one.settings, one),
                waits=tuple(one.waits),
                preparing=tuple(one.preparing.times),
                epochs=tuple(_epochs(one)),
            )


def _loader(settings: Loader, seen: Seen) -> Loader:
    of_slots = [slots.totals() for slots in seen.slots]
    totals = {name: sum(one[name] for one in of_slots) for name in workers.TOTALS}
    seeds = [epoch.seed for epoch in seen.epochs]
    seeded = settings.replicas is not None and len(seeds) > 1
    return replace(
        settings,
        data=seen.data,
        fields=dict(seen.fields),
        reaches=seen.preparing.reached,
        sampler_seconds=median(seen.drawing) if seen.drawing else 0.0,
        fetched=int(totals["fetched"]),
        fetch_seconds=totals["fetch_seconds"],
        fetch_cpu_seconds=totals["fetch_cpu_seconds"],
        collated=int(totals["collated"]),
        collate_seconds=totals["collate_seconds"],
        collate_cpu_seconds=totals["collate_cpu_seconds"],
        queued_seconds=totals["queued_seconds"],
        seeded_by_epoch=len(set(seeds)) == len(seeds) if seeded else None,
        starts=tuple(epoch.start for epoch in seen.epochs),
        first_waits=tuple(seconds for _, seconds, first in seen.waits if first),
        # Those that are too many count as one.
        epoch_batches=tuple(one.batches for one in seen.epochs[: MOST_EPOCHS - 1] if one.ended),
        unended=sum(epoch.batches for epoch in seen.epochs[-1:] if not epoch.ended),
        batch_bytes=seen.batch_bytes,
        padding=tuple(seen.padding),
        padded=tuple(seen.padded),
        lines=seen.slots[-1].lines() if seen.slots else (),
        randomness=seen.slots[0].randomness(seen.sources) if seen.slots else (),
    )


def _epochs(seen: Seen) -> Iterator[FirstBatches]:
    several = seen.slots[-1].workers if seen.slots else 0
    for number, epoch in enumerate(seen.epochs):
        for by, printed in epoch.prints.items():
            if printed and all(printed):
                yield FirstBatches(
                    rank=0,
                    name=seen.name,
                    epoch=number,
                    by=by,
                    batches=tuple(printed),
                    workers=tuple(one % several for one in range(len(printed))) if several else (),
                    taken=epoch.batches,
                )
