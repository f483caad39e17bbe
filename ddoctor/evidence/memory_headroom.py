"""How many samples of a training fit the devices, as real steps showed."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Part, Section

Stopped = Literal["", "host-memory", "time", "sizes", "data", "script"]
"""The host has no more memory to play with, a step would take too long, nobody trains with more, an
epoch has no more samples, the script that was run had no more steps."""

MARGIN = 0.05
"""Of what the allocator can get: a micro-batch that leaves less is not called safe.

A few per cent always lie in pieces between what is used, and come and go with the lengths of the
samples: from a tenth on that is a fault of its own (``cuda-oom-fragmentation``), half of it is kept
free here.
"""


class SampleUse(Part, frozen=True, kw_only=True):
    """What a step at one micro-batch took on one rank, in bytes."""

    micro_batch: int
    allocated: int
    reserved: int
    """By the caching allocator, from the device."""

    @property
    def unused(self) -> int:
        """Reserved and not allocated: what the allocator has in pieces."""
        return self.reserved - self.allocated


class RankHeadroom(Part, frozen=True, kw_only=True):
    """One rank, in bytes."""

    place: RankPlace
    total: int
    others: int
    """What is not the allocator's: of other processes, and CUDA's context."""
    limit: int
    """What the allocator can get."""
    parameters: int
    """Of the model, with its buffers."""
    fixed: int | None = None
    """What a step takes whatever its samples; None: fewer than two sizes fitted."""
    per_sample: int | None = None
    uses: tuple[SampleUse, ...] = ()
    """Of the sizes that fitted, the smallest first."""

    def use(self, micro_batch: int) -> SampleUse | None:
        """At this size; None: it was not tried, or did not fit."""
        return next((one for one in self.uses if one.micro_batch == micro_batch), None)

    def left(self, micro_batch: int) -> int | None:
        """Of what the allocator can get; None: it was not tried, or did not fit."""
        found = self.use(micro_batch)
        return None if found is None else self.limit - found.reserved


class MemoryTrial(Part, frozen=True, kw_only=True):
    """One micro-batch, tried on all ranks."""

    micro_batch: int
    outcome: Literal["fits", "thrashes", "out-of-memory"]
    """thrashes: the allocator had to give back its cache within the step, and got through."""
    ranks: tuple[int, ...] = ()
    """On which it did not fit."""
    exchange: bool = False
    """Whether gradients were exchanged; else each rank took the step alone."""


class StepRate(Part, frozen=True, kw_only=True):
    """Steps at one micro-batch, gradients exchanged and nothing loaded; where gradients are
    accumulated, what one micro-batch takes of a step."""

    micro_batch: int
    seconds: float
    """Of the median step, each on its slowest rank."""


class Longest(Part, frozen=True, kw_only=True):
    """How long samples can be."""

    samples: int
    """So many at a time."""
    current: int
    """Tokens of each, as the user said."""
    tokens: int
    """The most that were seen to fit; 0: not the fewest did."""
    too_long: int | None = None
    """The fewest that were seen not to fit; None: all did that were tried."""
    stopped: Stopped = ""
    """Why none were too long."""


class MemoryHeadroom(Section, frozen=True, kw_only=True):
    """Training steps at growing micro-batches, until one did not fit."""

    probe: ClassVar[str] = "memory_headroom"
    between_hosts: ClassVar[bool] = True

    workload: str
    """``package.module:factory``, or the script that was run."""
    played: bool
    """On CPU tensors, against a size that was stated."""
    current: int | None = None
    """The micro-batch in use, as the user said."""
    largest: int
    """The largest that was seen to fit; 0: not one sample did."""
    safe: int
    """The largest that leaves ``MARGIN`` on every rank; 0: not one sample does."""
    too_large: int | None = None
    """The smallest that was seen not to fit; None: all did that were tried."""
    stopped: Stopped = ""
    """Why none was too large."""
    foretold: int | None = None
    """By the line, the largest where it was stopped before."""
    trials: tuple[MemoryTrial, ...] = ()
    ranks: tuple[RankHeadroom, ...]
    rates: tuple[StepRate, ...] = ()
    sharded: bool = False
    """By FSDP, where several ranks take part; else by DDP, or as the script does it."""
    longest: Longest | None = None
    """None: nobody asked."""

    def samples_per_second(self, micro_batch: int) -> float | None:
        """Of all ranks together; None: not measured."""
        found = (one for one in self.rates if one.micro_batch == micro_batch)
        rate = next(found, None)
        return None if rate is None else len(self.ranks) * micro_batch / rate.seconds

    @property
    def tightest(self) -> RankHeadroom:
        """The rank that decides: where the largest leaves least; or where not one sample fits."""
        if not self.largest:
            short = {rank for trial in self.trials for rank in trial.ranks}
            return next((one for one in self.ranks if one.place.rank in short), self.ranks[0])
        return min(self.ranks, key=lambda one: self._rest(one))

    def _rest(self, rank: RankHeadroom) -> float:
        left = rank.left(self.largest) or 0
        return left / rank.per_sample if rank.per_sample else float(left)
