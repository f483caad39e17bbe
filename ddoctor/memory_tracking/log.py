"""The log of a step's memory, and the peaks and allocations that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

# torch's names of the memory that shrinks with the number of ranks. Optimizer states and the
# temporaries of its step have one name.
SHARED = ("Sharded Param", "Sharded Grad", "OptState")
# torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (2.13): what parameters are gathered in,
# and what gradients are reduced to, is allocated on a stream each.
STREAMS = ("All Gather", "Sharded Grad")


class Entry(NamedTuple):
    """What happened to an allocation, or the end of an operator."""

    what: str
    """new, free, size, kind, logits (it has their shape), operator, or step: a new one begins."""
    number: int = -1
    """Of the allocation, from 0; -1: none."""
    size: int = 0
    """Its new size in bytes; of an operator, the bytes that it needs besides its outputs."""
    kind: str = ""
    """Its new kind by torch's names, such as Activation; of an operator, the phase of the step."""
    module: str = ""
    """The module that runs, of an operator or a new allocation."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The memory at the peak of one phase of the step, in bytes."""

    phase: str
    """forward, backward, optimizer or evaluation."""
    module: str
    """The module of the last operator before it."""
    parts: Mapping[str, int]
    """By torch's names: Parameter, Buffer, Gradient, Activation, Temp, Optstate, Other; under FSDP
    Sharded Param, Unsharded Param, All Gather, Reduce Scatter, Inputs, …"""
    logits: Mapping[str, int]
    """Of these parts, the tensors with as many elements as the logits."""
    operators: int
    """Workspace of the operator at the peak."""

    @property
    def total(self) -> int:
        """Return total bytes, as the allocator counts them."""
        return sum(self.parts.values()) + self.operators


@dataclass(kw_only=True)
class Held:
    """What a log comes to."""

    peaks: dict[str, Peak] = field(default_factory=dict)
    """Of the last step, by phase."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """The allocations, as input of `ddoctor.forecast.allocator.replay`."""
    shared: set[int] = field(default_factory=set)
    """The allocations that shrink with the number of ranks."""
    streams: dict[int, str] = field(default_factory=dict)
    """The allocations that are on another stream than the computing, with the name of one."""

    def note(self, number: int, kind: str) -> None:
        """Note what follows from the kind of an allocation."""
        if kind in SHARED:
            self.shared.add(number)
        if kind in STREAMS:
            self.streams[number] = kind


def ordered(log: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the log with what is freed at once newest first.

    Autocast frees its copies of weights by their addresses, which no two runs share. The order
    changes neither a peak nor the free blocks of the allocator. Newest first, the temporaries of an
    optimizer's step read the same for any number of blocks, whose states are older.
    """
    for freed, found in groupby(log, key=lambda one: one.what == "free"):
        group = list(found)
        yield from sorted(group, key=lambda one: -one.number) if freed else group


def held(log: Iterable[Entry], kinds: Sequence[str], factor: float = 1) -> Held:
    """Return what the log comes to.

    ``kinds``: all of torch's names that a peak tells; ``factor``: as many times as many ranks share
    the sharded memory of the peaks. With more ranks, a peak may be at another moment.
    """
    found = Held()

    def share(size: int, kind: str) -> int:
        return round(size / factor) if kind in SHARED else size

    parts = dict.fromkeys(kinds, 0)
    sizes: dict[int, int] = {}
    kind_of: dict[int, str] = {}
    alike: dict[int, None] = {}
    total = 0
    most: dict[str, int] = {}
    for what, number, size, kind, module in log:
        if what == "operator":
            if total + size > most.get(kind, -1):
                most[kind] = total + size
                logits = Counter[str]()
                for one in alike:
                    logits[kind_of[one]] += share(sizes[one], kind_of[one])
                found.peaks[kind] = Peak(
                    phase=kind, module=module, parts=dict(parts), logits=logits, operators=size
                )
        elif what == "step":
            found.peaks.clear()
            most.clear()
        elif what == "logits":
            alike[number] = None
        elif what == "kind":
            before, after = share(sizes[number], kind_of[number]), share(sizes[number], kind)
            parts[kind_of[number]] -= before
            parts[kind] = parts.get(kind, 0) + after
            total += after - before
            kind_of[number] = kind
            found.note(number, kind)
        else:
            if what == "new":
                sizes[number], kind_of[number] = 0, kind
                found.note(number, kind)
            now = 0 if what == "free" else size
            its = kind_of[number]
            change = share(now, its) - share(sizes[number], its)
            parts[its] = parts.get(its, 0) + change
            total += change
            sizes[number] = now
            found.sizes.append((number, now))
            if what == "free":
                alike.pop(number, None)
    return found
