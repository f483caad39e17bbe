"""GPUs that ran out of memory, by the snapshots of torch's allocator: the kind of each case."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ddoctor.analysis import cuda_oom, endings
from ddoctor.analysis.cuda_oom import FIRST_STEPS, IN_PIECES, NOTABLE
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.memory_fixes import MemoryNeed, remedies
from ddoctor.evidence.memory_snapshot import DeviceMemory, MemoryFailure, MemorySnapshots
from ddoctor.evidence.plan import MemoryParts
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# Shares of the allocated memory. More that was freed since the failure, or that no stack explains,
# and the snapshot does not show what the failure met; less in one place is not its reason.
FREED, UNEXPLAINED, LARGE = 0.1, 0.2, 0.1
SOURCE = "memory snapshot of torch"

Kind = Literal["freed", "ranks", "others", "grown", "evaluation", "pieces", "narrow", "too-much"]
"""The reason that memory ran out.

- freed: unknown, because much was freed before the snapshot.
- ranks, others: other ranks of this run, or other processes, hold the memory.
- grown: memory grew in each step.
- evaluation: an evaluation holds much of the memory.
- pieces: enough memory was unused, but not in one block.
- narrow, too-much: it failed after many good steps, or in the first ones.
"""


@dataclass(frozen=True, kw_only=True)
class SnapshotFailure:
    """One process that ran out of memory on one GPU."""

    memory: DeviceMemory
    failure: MemoryFailure
    world: int
    """Number of ranks, as far as the snapshots show it."""
    guests: tuple[DeviceMemory, ...]
    """What other ranks, which mainly use another GPU, hold of this one."""
    outside: int
    """Bytes that torch could reserve more on the GPU of another rank."""

    @property
    def missing(self) -> int:
        """The least additional memory that the request needs, in bytes."""
        return max(0, self.failure.bytes - self.failure.free)

    @property
    def kind(self) -> Kind:
        """The reason."""
        memory = self.memory
        large = max(1, self.missing, LARGE * memory.allocated)
        if self.failure.freed > FREED * memory.allocated:
            return "freed"
        if self.guests and sum(one.reserved for one in self.guests) >= self.missing:
            return "ranks"
        if self.outside >= max(NOTABLE, self.missing):
            return "others"
        if grown(memory) >= large:
            return "grown"
        if self.failure.in_evaluation and evaluation(memory) >= large:
            return "evaluation"
        # A block that is large enough was not allowed to be used, for another reason.
        small = memory.largest_free < self.failure.bytes
        if small and memory.usable >= max(1, self.missing, IN_PIECES * memory.reserved):
            return "pieces"
        return "narrow" if memory.steps > FIRST_STEPS else "too-much"


@dataclass(frozen=True, kw_only=True)
class SnapshotFailures(Derived):
    """All of them, without ranks whose error a log or a record has: it says more of the GPU."""

    found: tuple[SnapshotFailure, ...]

    @classmethod
    def derive(cls, snapshots: MemorySnapshots, run: TrainingRun | None) -> SnapshotFailures:
        """The failures that the snapshots of a run show."""
        told = {case.rank.rank for case in cuda_oom.cases(run)} if run is not None else set()
        rows, gpus = snapshots.devices, _Gpus(snapshots.devices)
        world = len({one.name for one in rows})
        return cls(
            found=tuple(
                SnapshotFailure(
                    memory=one,
                    failure=one.failure,
                    world=max(world, 1 + (one.rank or 0)),
                    guests=gpus.guests(one),
                    outside=max(0, gpus.most_elsewhere(one) - one.reserved - one.failure.free),
                )
                for one in rows
                if one.failure is not None and not {one.rank, -1} & told
            )
        )

    def of_kind(self, *kinds: Kind) -> Sequence[SnapshotFailure]:
        """The cases of the same kind as the first one, if that is one of these kinds."""
        return [one for one in self.found if one.kind == self.found[0].kind and one.kind in kinds]


def grown(memory: DeviceMemory) -> int:
    """Bytes that were added step by step."""
    return sum(one.grown for one in memory.holders)


def evaluation(memory: DeviceMemory) -> int:
    """Bytes that functions hold which evaluate or validate."""
    return sum(one.bytes for one in memory.holders if one.in_evaluation)


class _Gpus:
    """Which GPU each rank mainly uses, and how much torch could reserve on the others."""

    def __init__(self, rows: Sequence[DeviceMemory]) -> None:
        self._main: dict[str, DeviceMemory] = {}
        """By the name of a process."""
        for one in sorted(rows, key=lambda one: one.reserved):
            self._main[one.name] = one
        self._most = heapq.nlargest(2, self._main.values(), key=lambda one: one.reserved)
        self._visits: dict[int, list[DeviceMemory]] = {}
        for one in rows:
            if one.rank is not None and self._main[one.name] is not one:
                self._visits.setdefault(one.device, []).append(one)

    def guests(self, memory: DeviceMemory) -> tuple[DeviceMemory, ...]:
        """What other ranks hold of it; a single process may use several GPUs on purpose."""
        if memory.rank is None or self._main[memory.name] is not memory:
            return ()
        found = self._visits.get(memory.device, ())
        return tuple(found) if len(found) > 1 else ()

    def most_elsewhere(self, memory: DeviceMemory) -> int:
        """The most that another process has reserved on one GPU."""
        return next((one.reserved for one in self._most if one.name != memory.name), 0)


def parts(memory: DeviceMemory) -> MemoryParts | None:
    """What the memory holds; None: the stacks do not say it."""
    known = MemoryParts(
        parameters=memory.of_kind("parameters"),
        gradients=memory.of_kind("gradients"),
        optimizer=memory.of_kind("optimizer states"),
        activations=memory.of_kind("activations"),
        temporaries=memory.of_kind("temporaries of the optimizer"),
    )
    return known if known.total >= (1 - UNEXPLAINED) * memory.allocated else None


def named(memory: DeviceMemory) -> str:
    """The kinds of its contents in GiB, the largest first."""
    sizes: dict[str, int] = {}
    for one in memory.holders:
        if one.kind not in ("no stack", "other"):
            sizes[one.kind] = sizes.get(one.kind, 0) + one.bytes
    shown = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{size / GIB:.1f} {kind}" for kind, size in shown if size >= 0.05 * GIB)


def finding(
    found: Sequence[SnapshotFailure],
    more: str,
    fixes: Iterable[Fix],
    *,
    confidence: Confidence = Confidence.LIKELY,
    cost: int | None = None,
) -> Finding:
    """The finding about the first case; ``more`` follows its sentence, ``cost`` is in bytes."""
    case = found[0]
    memory, failure = case.memory, case.failure
    wants = f" for {failure.kind}" if failure.kind not in ("no stack", "other") else ""
    figures = {
        "requested": failure.bytes,
        "free": failure.free,
        "allocated by torch": memory.allocated,
        "reserved, not allocated": memory.unused,
        "largest unused block": memory.largest_free,
    }
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        because=(
            f"{memory.name} ran out of memory on GPU {memory.device}{endings.at(failure.line)}: it "
            f"requested {failure.bytes / GIB:.2f} GiB{wants}, {failure.free / GIB:.2f} GiB were "
            f"free, and torch held {memory.allocated / GIB:.1f} GiB{more}"
        ),
        evidence=tuple(
            Observation(name=name, value=round(size / GIB, 2), unit="GiB", source=SOURCE)
            for name, size in figures.items()
        ),
        where=where([one.memory for one in found]),
        cost=Cost(value=round(cost / GIB, 2), unit="GiB") if cost is not None else None,
        fixes=tuple(fixes),
    )


def needs_too_much(
    found: Sequence[SnapshotFailure], more: str = "", *, confidence: Confidence = Confidence.LIKELY
) -> Finding:
    """The finding that a step needs too much memory; ``more`` follows as a last clause."""
    case = found[0]
    held = named(case.memory)
    need = MemoryNeed(
        parts=parts(case.memory),
        missing=case.missing,
        sharded=case.world if case.memory.sharded else 1,
        shards=0 if case.memory.sharded else max(2, case.world),
    )
    return finding(
        found,
        f"{f': {held}' if held else ''}{more}",
        remedies(need),
        confidence=confidence,
        cost=case.missing,
    )


def where(memories: Iterable[DeviceMemory]) -> Where:
    """The ranks and devices."""
    rows = list(memories)
    return Where(
        ranks=tuple(sorted({one.rank for one in rows if one.rank is not None})),
        devices=tuple(sorted({f"cuda:{one.device}" for one in rows})),
    )
