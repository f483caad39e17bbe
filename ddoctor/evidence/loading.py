"""The DataLoaders of a training script: how they are set, what they cost, what they delivered."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.section import Part, Section


class WorkerRandomness(Part, frozen=True, kw_only=True):
    """One source of random numbers in one worker."""

    worker: int
    source: str
    """``numpy.random``, ``random``, ``torch``, or the attribute of the dataset that holds it."""
    first: str
    """A fingerprint of its state before the first item."""
    used: bool
    """Whether its state changed with the items."""


class Loader(Part, frozen=True, kw_only=True):
    """One DataLoader of one rank that the training steps took batches from."""

    rank: int
    host: str
    name: str
    """Where the script makes it: file:line."""
    dataset: str
    """The class of the dataset."""
    kind: Literal["map", "iterable"]
    items: int | None
    """The length of the dataset; None: it has none."""
    batch_size: int | None
    batches: int | None
    """The length of the loader; None: it has none."""
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    context: str
    """fork, spawn or forkserver."""
    drop_last: bool
    sampler: str
    """The class of the sampler."""
    shuffle: bool | None = None
    """Of a DistributedSampler; None: another sampler."""
    seeded_by_epoch: bool | None = None
    """Whether set_epoch had been called with a new number at the second epoch; None: no second one,
    or no DistributedSampler."""
    replicas: int | None = None
    """Into how many parts its sampler shares the dataset out; None: it does not."""

    fetched: int = 0
    """Items that were fetched and timed, in the workers or in the main process."""
    fetch_seconds: float = 0.0
    """To fetch them, without collate."""
    fetch_cpu_seconds: float = 0.0
    """Of these, on a CPU."""
    collated: int = 0
    """Batches that were collated and timed."""
    collate_seconds: float = 0.0
    collate_cpu_seconds: float = 0.0
    collate: str = ""
    """The collate function, as the script names it."""
    collate_in_main: float = 0.0
    """Seconds that the main process itself spent on each batch with workers at hand: unpickling,
    pinning, what the script does in the loader's own wrapper."""

    taken: int = 0
    """Batches that the judged steps took."""
    wait_seconds: tuple[float, ...] = ()
    """Of each of them, how long the main thread was in the loader."""
    starts: tuple[float, ...] = ()
    """Of each epoch that began while it was watched, the seconds until its iterator was made."""
    first_waits: tuple[float, ...] = ()
    """Of each of these epochs, the seconds from then until its first batch came."""
    epoch_batches: tuple[int, ...] = ()
    """Of each epoch that ended while it was watched, how many batches it had."""
    worker_memory: float | None = None
    """MiB of one worker's own (unshared) memory, the median of them; None: not seen."""
    batch_bytes: int | None = None
    """Bytes of the tensors of a batch."""
    randomness: tuple[WorkerRandomness, ...] = ()

    @property
    def item_seconds(self) -> float:
        """To fetch one item; 0: not timed."""
        return self.fetch_seconds / self.fetched if self.fetched else 0.0

    @property
    def batch_seconds(self) -> float:
        """One worker's time for one batch: all its items and collate; 0: not timed."""
        if not self.collated:
            return 0.0
        return (self.fetch_seconds + self.collate_seconds) / self.collated

    @property
    def batch_cpu_seconds(self) -> float:
        """The CPU's part of ``batch_seconds``."""
        if not self.collated:
            return 0.0
        return (self.fetch_cpu_seconds + self.collate_cpu_seconds) / self.collated


class Loading(Section, frozen=True, kw_only=True):
    """The training loaders of all ranks."""

    of_training: ClassVar[bool] = True

    loaders: tuple[Loader, ...]


class CurvePoint(Part, frozen=True, kw_only=True):
    """A loader alone, without the training, at one number of workers."""

    rank: int
    name: str
    """Of the loader."""
    num_workers: int
    seconds_per_batch: float
    """The median interval between batches once the workers have started."""
    batches: int
    """That were timed."""
    start_seconds: float
    """Until the first batch came."""


class LoaderCurve(Section, frozen=True, kw_only=True):
    """The user's own loaders in isolation, all ranks at the same time."""

    of_training: ClassVar[bool] = True

    points: tuple[CurvePoint, ...]


class FirstBatches(Part, frozen=True, kw_only=True):
    """Fingerprints of the first batches of one epoch on one rank."""

    rank: int
    name: str
    """Of the loader."""
    epoch: int
    """Counted from the first one that was seen."""
    by: Literal["indices", "values", "labels"]
    """What the fingerprint is of: the numbers of the items, the tensors themselves, or those of
    them that hold different whole numbers, which random augmentation leaves alone."""
    batches: tuple[str, ...]
    workers: tuple[int, ...] = ()
    """Which worker made each of them; empty: the main process."""
    taken: int | None = None
    """How many batches the script took in this epoch as far as it was seen; None: not counted."""


class DataSeen(Section, frozen=True, kw_only=True):
    """What the ranks were given to train on."""

    of_training: ClassVar[bool] = True

    epochs: tuple[FirstBatches, ...]
