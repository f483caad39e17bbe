"""The DataLoaders of a training script: settings, cost, and batches delivered."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddoctor.evidence.frames import Origin
from ddoctor.evidence.section import Count, Part, RunSection, of_one_length
from ddoctor.evidence.steps import HotLine


class WorkerRandomness(Part, frozen=True, kw_only=True):
    """One random number generator in one worker."""

    worker: int
    source: str
    """``numpy.random``, ``random``, ``torch``, or the dataset attribute that holds it."""
    first: str
    """Fingerprint of its state before the first item."""
    used: bool
    """Whether the items changed its state."""


class Loader(Part, frozen=True, kw_only=True):
    """One DataLoader of one rank that feeds the training steps."""

    rank: int
    host: str
    name: str
    """The line that creates it: file:line."""
    dataset: str
    kind: Literal["map", "iterable"]
    items: int | None
    """Length of the dataset; None: it has none."""
    batch_size: int | None
    batches: int | None
    """Length of the loader; None: it has none."""
    num_workers: Count
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    context: str
    """Start method of the workers: fork, spawn or forkserver."""
    sampler: str
    shuffle: bool | None = None
    """Setting of a DistributedSampler; None: another sampler."""
    seeded_by_epoch: bool | None = None
    """Whether set_epoch had a new number for the second epoch; None: no such epoch or sampler."""
    replicas: int | None = None
    """Number of parts into which the sampler splits the dataset; None: it does not split."""
    sampler_seconds: float = 0.0
    """Median time for the indices of a batch, which the training process draws."""
    reaches: bool = False
    """Whether the model got a batch of it unchanged, in its first calls for training."""
    data: str = ""
    """Fingerprint of the fields of the dataset; empty: they do not show what it holds."""
    fields: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Of the dataset's fields with a text or a whole number for each item: their fingerprints, in
    order and in any order."""

    fetched: int = 0
    """Items that were fetched and timed, in workers or in the main process."""
    fetch_seconds: float = 0.0
    """Seconds to fetch them, without collate."""
    fetch_cpu_seconds: float = 0.0
    """CPU seconds of them."""
    collated: int = 0
    """Batches that were collated and timed."""
    collate_seconds: float = 0.0
    """Seconds to collate them."""
    collate_cpu_seconds: float = 0.0
    """CPU seconds of them."""
    queued_seconds: float = 0.0
    """Seconds of both, fetching and collating, in which their process waited for a CPU."""
    collate: str = ""
    """The collate function, as the script names it."""
    collate_in_main: float = 0.0
    """Seconds per batch in which the training process changes it before the model, say to pad."""

    taken: int = 0
    """Batches that the judged steps used."""
    wait_seconds: tuple[float, ...] = ()
    """Seconds of the main thread in the loader, for each of them."""
    wait_steps: tuple[int, ...] = ()
    """Index of the judged step that used each of them."""
    first_batches: tuple[int, ...] = ()
    """Index in ``wait_seconds`` of each first batch of an epoch."""
    starts: tuple[float, ...] = ()
    """Seconds to create the iterator, for each epoch that began during the recording."""
    first_waits: tuple[float, ...] = ()
    """Seconds from then to the first batch, for each of these epochs."""
    epoch_batches: tuple[int, ...] = ()
    """Number of batches of each epoch that ended during the recording."""
    unended: Count = 0
    """Number of batches so far of the last epoch, if the loader did not come to its end; else 0."""
    worker_memory: float | None = None
    """Unshared memory of one worker in MiB, the median of them; None: not visible."""
    batch_bytes: int | None = None
    """Bytes of the tensors of a batch."""
    padding: tuple[float, ...] = ()
    """Of each batch that was looked at and has tokens: the share of padding columns, 0 to 1. In
    these, at one end of its integer tensors, all samples have the same value."""
    padded: tuple[float, ...] = ()
    """Of the same batches: the share of all padding, 0 to 1, that of single samples as well."""
    lines: tuple[HotLine, ...] = ()
    """The user's lines at which its workers were sampled most often; empty: it has none."""
    randomness: tuple[WorkerRandomness, ...] = ()

    def __post_init__(self) -> None:
        of_one_length(wait_seconds=self.wait_seconds, wait_steps=self.wait_steps)
        if max(self.first_batches, default=-1) >= len(self.wait_steps):
            raise ValueError("a first batch of an epoch is none of the batches")

    @property
    def item_seconds(self) -> float:
        """Seconds to fetch one item; 0: not timed."""
        return self.fetch_seconds / self.fetched if self.fetched else 0.0

    @property
    def batch_seconds(self) -> float:
        """Seconds of one worker for one batch: all its items and collate; 0: not timed."""
        if not self.collated:
            return 0.0
        return (self.fetch_seconds + self.collate_seconds) / self.collated

    @property
    def batch_cpu_seconds(self) -> float:
        """CPU seconds of ``batch_seconds``."""
        if not self.collated:
            return 0.0
        return (self.fetch_cpu_seconds + self.collate_cpu_seconds) / self.collated

    @property
    def batch_asleep_seconds(self) -> float:
        """Of ``batch_seconds``, those for which a worker waited for something other than a CPU."""
        queued = self.queued_seconds / self.collated if self.collated else 0.0
        return max(0.0, self.batch_seconds - self.batch_cpu_seconds - queued)


class Loading(RunSection, frozen=True, kw_only=True):
    """The training loaders of all ranks."""

    loaders: tuple[Loader, ...]

    def with_workers(self, rank: int) -> tuple[Loader, ...]:
        """The loaders of one rank that have workers."""
        return tuple(one for one in self.loaders if one.rank == rank and one.num_workers)


class CurvePoint(Part, frozen=True, kw_only=True):
    """A loader in isolation, without the training, at one number of workers; named as in Loader."""

    rank: int
    name: str
    """The line that creates the loader: file:line."""
    num_workers: Count
    seconds_per_batch: float
    """Median interval between batches after the workers have started, in seconds."""
    batches: int
    """Number of batches timed."""
    start_seconds: float
    """Seconds to the first batch."""


class LoaderCurve(RunSection, frozen=True, kw_only=True):
    """The user's loaders in isolation, on all ranks at the same time."""

    points: tuple[CurvePoint, ...]


class FirstBatches(Part, frozen=True, kw_only=True):
    """Fingerprints of the first batches of one epoch on one rank; named as in Loader."""

    rank: int
    name: str
    """The line that creates the loader: file:line."""
    epoch: int
    """Epoch number, from 0 at the first epoch recorded."""
    by: Literal["indices", "values", "labels"]
    """Of item indices, all tensors, or the integer tensors that vary (despite augmentation)."""
    batches: tuple[str, ...]
    workers: tuple[int, ...] = ()
    """The worker that made each batch; empty: the main process."""
    taken: int | None = None
    """Number of batches that the script took in this epoch while recorded; None: not counted."""

    def __post_init__(self) -> None:
        of_one_length(batches=self.batches, workers=self.workers)


class FirstInputs(Part, frozen=True, kw_only=True):
    """Fingerprints of what the model got in its first calls on one rank."""

    rank: int
    batches: tuple[str, ...]
    random: bool
    """Whether all look like random numbers: normal, or uniform."""
    origins: tuple[Origin, ...] = ()
    """Statements whose values the line reads that calls the model, directly or not."""


class LoopTurns(Part, frozen=True, kw_only=True):
    """A ``for`` loop around the training on one rank that ends with what it goes through."""

    rank: int
    at: str
    """file:line."""
    text: str
    """Its first line of source."""
    turns: int | None
    """Length of what it goes through; None: not known."""
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    """Whole numbers that it gives to a function, if the length is not known: by their names."""


class DataSeen(RunSection, frozen=True, kw_only=True):
    """The data on which the ranks trained."""

    epochs: tuple[FirstBatches, ...]
    inputs: tuple[FirstInputs, ...] = ()
    turns: tuple[LoopTurns, ...] = ()
    """Loops that were still running when the recording ended; empty: it did not end in one."""
