"""The number of samples that fit on the devices, measured by real training steps."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Part, Section

Stopped = Literal["", "host-memory", "time", "sizes", "data", "script"]
"""Why the search stopped: host memory, step time, the largest useful micro-batch, the end of the
epoch, or the end of the script."""

MARGIN = 0.05
"""Share of the allocator's limit: a micro-batch that leaves less is not called safe.

A few per cent are always fragmented and vary with the lengths of the samples. From a tenth on this
is a separate fault (``cuda-oom-fragmentation``); half of that stays free here.
"""


class SampleUse(Part, frozen=True, kw_only=True):
    """Memory of a step at one micro-batch on one rank, in bytes."""

    micro_batch: int
    allocated: int
    """Peak bytes of tensors."""
    reserved: int
    """Bytes that the caching allocator reserved on the device."""

    @property
    def unused(self) -> int:
        """Bytes reserved and not allocated: fragmented memory of the allocator."""
        return self.reserved - self.allocated


class RankHeadroom(Part, frozen=True, kw_only=True):
    """Memory of one rank, in bytes."""

    signed = frozenset({"per_sample"})

    place: RankPlace
    total: int
    """Bytes of the device."""
    others: int
    """Bytes outside of the allocator: other processes, and CUDA's context."""
    limit: int
    """Bytes that the allocator can get."""
    parameters: int
    """Bytes of the model's parameters and buffers."""
    fixed: int | None = None
    """Bytes that a step needs regardless of its samples; None: fewer than two sizes fit."""
    per_sample: int | None = None
    """Bytes that each sample adds to a step; None: fewer than two sizes fit."""
    uses: tuple[SampleUse, ...] = ()
    """The sizes that fit, smallest first."""

    def use(self, micro_batch: int) -> SampleUse | None:
        """The memory at this size; None: not tried, or it did not fit."""
        return next((one for one in self.uses if one.micro_batch == micro_batch), None)

    def left(self, micro_batch: int) -> int | None:
        """Bytes of the limit that stay free at this size; None: not tried, or it did not fit."""
        found = self.use(micro_batch)
        return None if found is None else self.limit - found.reserved


class MemoryTrial(Part, frozen=True, kw_only=True):
    """One micro-batch, tried on all ranks."""

    micro_batch: int
    outcome: Literal["fits", "thrashes", "out-of-memory"]
    """thrashes: it fits, but the allocator had to release its cache within the step."""
    ranks: tuple[int, ...] = ()
    """Ranks on which it did not fit."""
    exchange: bool = False
    """Whether the ranks exchanged gradients; otherwise each rank took the step alone."""


class StepRate(Part, frozen=True, kw_only=True):
    """Steps at one micro-batch with gradient exchange and without data loading. With gradient
    accumulation, one micro-batch's share of a step."""

    micro_batch: int
    seconds: float
    """Seconds of the median step, each on its slowest rank."""


class Longest(Part, frozen=True, kw_only=True):
    """The longest sequence that fits."""

    samples: int
    """Samples per micro-batch."""
    current: int
    """Tokens per sample in use, as the user states."""
    tokens: int
    """The most tokens that fit; 0: not even the fewest tried."""
    too_long: int | None = None
    """The fewest tokens that did not fit; None: all that were tried fit."""
    stopped: Stopped = ""
    """Why the search stopped before a length did not fit."""


class MemoryHeadroom(Section, frozen=True, kw_only=True):
    """Training steps at growing micro-batches, until one does not fit."""

    probe = "memory_headroom"
    commands = ("probe", "run")

    workload: str
    """``package.module:factory``, or the script that was run."""
    played: bool
    """Whether CPU tensors were counted against a stated device size."""
    current: int | None = None
    """The micro-batch in use, as the user states."""
    largest: int
    """The largest micro-batch that fits; 0: not even one sample."""
    safe: int
    """The largest that leaves ``MARGIN`` on every rank; 0: not even one sample."""
    too_large: int | None = None
    """The smallest that did not fit; None: all that were tried fit."""
    stopped: Stopped = ""
    """Why the search stopped before a micro-batch did not fit."""
    foretold: int | None = None
    """The largest micro-batch by extrapolation, where the search stopped early."""
    trials: tuple[MemoryTrial, ...] = ()
    ranks: Annotated[tuple[RankHeadroom, ...], msgspec.Meta(min_length=1)]
    rates: tuple[StepRate, ...] = ()
    sharded: bool = False
    """Whether FSDP shards over several ranks; otherwise DDP, or the script's own strategy."""
    longest: Longest | None = None
    """The longest sequence; None: not requested."""

    def samples_per_second(self, micro_batch: int) -> float | None:
        """Samples per second of all ranks together; None: not measured."""
        found = (one for one in self.rates if one.micro_batch == micro_batch)
        rate = next(found, None)
        if rate is None or not rate.seconds:
            return None
        return len(self.ranks) * micro_batch / rate.seconds

    @property
    def tightest(self) -> RankHeadroom:
        """The limiting rank: least memory left at the largest micro-batch, or no sample fits."""
        if not self.largest:
            short = {rank for trial in self.trials for rank in trial.ranks}
            return next((one for one in self.ranks if one.place.rank in short), self.ranks[0])
        return min(self.ranks, key=lambda one: self._rest(one))

    def _rest(self, rank: RankHeadroom) -> float:
        left = rank.left(self.largest) or 0
        return left / rank.per_sample if rank.per_sample else float(left)
