"""What the memory snapshots of torch's allocator say of each GPU."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.section import Known, Part, Section

AllocationKind = Literal[
    "parameters",
    "gradients",
    "optimizer states",
    "temporaries of the optimizer",
    "activations",
    "no stack",
    "other",
]
"""What a stack allocates; ``no stack``: it was not recorded, or it has no Python frames, as that of
the thread on which backward runs."""


class Holder(Part, frozen=True, kw_only=True):
    """The allocated blocks of one kind that one line has allocated."""

    kind: AllocationKind
    line: Frame | None = None
    """The innermost line of the user's code, or else of Python; None: no line is known."""
    bytes: int
    blocks: int
    in_evaluation: bool = False
    """Whether a function that evaluates or validates has allocated them."""
    grown: int = 0
    """Bytes of those that were added step by step until the end, as far as the trace goes back."""
    grown_tensors: int = 0
    """Number of these."""


class MemoryFailure(Part, frozen=True, kw_only=True):
    """The request that failed last, if the process did not continue after it."""

    bytes: int
    free: int
    """Bytes that the driver reported as free."""
    kind: AllocationKind
    line: Frame | None = None
    in_evaluation: bool = False
    freed: int = 0
    """Bytes that were freed between it and the snapshot."""


class DeviceMemory(Part, frozen=True, kw_only=True):
    """The memory of one process on one GPU, in bytes."""

    rank: int | None = None
    """None: the name of the file does not say it."""
    file: str
    device: int
    reserved: int
    """Of all segments."""
    allocated: int
    """Of the blocks that tensors use, or that wait until another stream is done with them."""
    largest_free: int = 0
    """The largest unused block."""
    usable: int = 0
    """Unused, in segments from which the failed request could be taken: of the same stream and
    pool. Without a failure, of all segments."""
    expandable: bool = False
    """Whether segments are expandable."""
    holders: tuple[Holder, ...] = ()
    """The largest ones."""
    steps: int = 0
    """Number of optimizer steps that the trace shows."""
    sharded: bool = False
    """Whether a stack shows that FSDP or ZeRO shards the model."""
    failure: MemoryFailure | None = None

    @property
    def unused(self) -> int:
        """Reserved and not allocated."""
        return self.reserved - self.allocated

    @property
    def name(self) -> str:
        """The rank, or else the file."""
        return f"rank {self.rank}" if self.rank is not None else self.file

    def of_kind(self, *kinds: AllocationKind) -> int:
        """Bytes of the holders of these kinds."""
        return sum(one.bytes for one in self.holders if one.kind in kinds)


class MemorySnapshots(Section, frozen=True, kw_only=True):
    """The memory of a run's GPUs, from the snapshots that its ranks have written."""

    commands = ("diagnose",)
    obtained_by = "torch.cuda.memory._dump_snapshot(), then ddoctor diagnose FILE..."

    files: tuple[str, ...]
    devices: tuple[DeviceMemory, ...]
    """By rank and device; those on which nothing is reserved are missing."""


class AllocationRow(Part, frozen=True, kw_only=True):
    """Frames that show what a stack allocates."""

    kind: AllocationKind
    file: str = ""
    """A regular expression that a part of the path must match; empty: any."""
    function: str
    """A regular expression that the whole name must match; of C++, its beginning."""
    source: str


class KnownAllocations(Known, frozen=True, kw_only=True):
    """What stacks allocate: the innermost frame that matches a row decides, by its first row."""

    table = "allocations.toml"

    row: tuple[AllocationRow, ...]
