"""Reads a snapshot of torch's memory allocator: who holds the memory of each GPU, and what failed.

The format is that of ``torch.cuda.memory._snapshot()`` (torch/cuda/memory.py), which
``_dump_snapshot`` pickles; torch.xpu writes the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any

import msgspec

from ddoctor import knowledge
from ddoctor.analysis.cuda_oom import EVALUATES
from ddoctor.analysis.trend import FEWEST_STEPS
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.memory_snapshot import (
    AllocationKind,
    DeviceMemory,
    Holder,
    KnownAllocations,
    MemoryFailure,
)
from ddoctor.reading import plain_pickle
from ddoctor.reading.plain_pickle import Readable
from ddoctor.reading.recorded_frames import RecordedFrame, is_native, placed

MOST_ROWS = 1_500_000
"""Blocks and events: a few bytes of a pickle can name one list many times."""
MOST_LINES = 200_000
"""Frames that differ; each is one object, however many stacks it is on."""
MOST_FRAMES = 1_000
"""Frames of a stack that are looked at, the innermost ones; each of Python has some of C++."""
MOST_HOLDERS = 12
"""Lines of each device; the others are added up."""
MOST_DEVICES = 64
"""Devices of one process."""
LARGEST = 2**41
"""Bytes of a block: so the sum of all has at most 64 bits."""
SMALL = 2**20
"""Smaller requests have separate segments (kSmallSize of c10/core/AllocatorConfig.h)."""
IN_USE = ("active_allocated", "active_pending_free", "active_awaiting_free")
IN_STEP: tuple[AllocationKind, ...] = ("optimizer states", "temporaries of the optimizer")
# What a loop can keep by mistake; the others stay for the whole run, or are freed with the step.
CAN_GROW: tuple[AllocationKind, ...] = ("activations", "other")
# A loop that keeps a tensor in every second step still grows; one that stops keeping does not.
OF_THE_STEPS = 0.5
SHARDS = re.compile(r"torch/distributed/(_composable/)?fsdp/|deepspeed/runtime/zero/")

_Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=MOST_DEVICES)]


class _Block(msgspec.Struct):
    size: _Size
    state: str
    frames: Any = ()


class _Segment(msgspec.Struct):
    total_size: _Size
    blocks: Any
    device: _Index = 0
    stream: int = 0
    segment_type: str = "large"
    segment_pool_id: Any = (0, 0)
    is_expandable: bool = False


class _Event(msgspec.Struct):
    action: str
    size: _Size = 0
    addr: int = 0
    stream: int = 0
    device_free: _Size = 0
    frames: Any = ()


@dataclass(frozen=True, eq=False)
class _Stack:
    """What a stack allocates, and by which line; one object for all stacks that are alike."""

    kind: AllocationKind
    line: Frame | None
    in_evaluation: bool


@dataclass(frozen=True)
class _Seen:
    """What one frame says."""

    frame: Frame
    kind: AllocationKind | None
    native: bool
    evaluates: bool
    shards: bool

    @classmethod
    def of(cls, raw: object) -> _Seen:
        one = msgspec.convert(raw, RecordedFrame)
        native = is_native(one.filename, one.name)
        return cls(
            frame=placed(one.filename, one.line, one.name),
            kind=_kind(one.filename, one.name),
            native=native,
            evaluates=not native and EVALUATES.fullmatch(one.name) is not None,
            shards=SHARDS.search(one.filename) is not None,
        )


@lru_cache(1)
def _rows() -> tuple[tuple[AllocationKind, re.Pattern[str], re.Pattern[str]], ...]:
    table: KnownAllocations = knowledge.load(KnownAllocations)
    return tuple((row.kind, re.compile(row.file), re.compile(row.function)) for row in table.row)


def _kind(file: str, function: str) -> AllocationKind | None:
    found = (kind for kind, *row in _rows() if row[0].search(file) and row[1].fullmatch(function))
    return next(found, None)


@dataclass
class _Stacks:
    """The stacks of a snapshot. Equal frames are one object in it, and so are many stacks."""

    shards: bool = False
    _frames: dict[int, _Seen] = field(default_factory=dict)
    _stacks: dict[int, _Stack] = field(default_factory=dict)
    _alike: dict[tuple[object, ...], _Stack] = field(default_factory=dict)

    def of(self, frames: object) -> _Stack:
        """Return what a list of frames says, the innermost first."""
        found = self._stacks.get(id(frames))
        if found is None:
            if not isinstance(frames, list | tuple):
                raise TypeError("the frames of a stack are no list")
            found = self._stacks[id(frames)] = self._judged(islice(frames, MOST_FRAMES))
        return found

    def _judged(self, frames: Iterable[object]) -> _Stack:
        kind: AllocationKind | None = None
        line = library = None
        evaluates, empty = False, True
        for raw in frames:
            empty = False
            seen = self._frames.get(id(raw))
            if seen is None:
                if len(self._frames) >= MOST_LINES:
                    raise ValueError(f"more than {MOST_LINES} different frames")
                seen = self._frames[id(raw)] = _Seen.of(raw)
            kind = kind or seen.kind
            evaluates = evaluates or seen.evaluates
            self.shards = self.shards or seen.shards
            if line is None and seen.frame.of_user:
                line = seen.frame
            if library is None and not seen.native:
                library = seen.frame
        line = line or library
        key = (kind, evaluates, empty, *((line.file, line.line, line.function) if line else ()))
        made = _Stack(kind or ("no stack" if empty else "other"), line, evaluates)
        return self._alike.setdefault(key, made)


@dataclass
class _Survivors:
    """Tensors of one stack that were not freed, by the step that allocated them."""

    bytes: int = 0
    count: int = 0
    steps: set[int] = field(default_factory=set)

    def grow(self, steps: int) -> bool:
        """Whether they were added in at least half of the steps, early and late."""
        middle = steps // 2
        early = sum(step < middle for step in self.steps)
        late = len(self.steps) - early
        enough = early >= OF_THE_STEPS * middle and late >= OF_THE_STEPS * (steps - middle)
        return steps >= FEWEST_STEPS and enough


class _Trace:
    """The events of one device, in their order, as far as the ring buffer goes back."""

    def __init__(self) -> None:
        self.steps = 0
        self.failed: _Event | None = None
        self.freed = 0
        self._went_on = 0
        self._frees = False
        self._stepped = False
        self._live: dict[int, tuple[int, _Stack, int]] = {}

    def feed(self, event: _Event, stack: _Stack) -> None:
        if event.action == "oom":
            self.failed, self.freed, self._went_on = event, 0, 0
            return
        # An optimizer step ends where the next forward pass begins.
        if stack.kind in IN_STEP:
            self._stepped = True
        elif self._stepped and event.action == "alloc" and stack.kind == "activations":
            self.steps, self._stepped = self.steps + 1, False
        if event.action == "alloc":
            self._live[event.addr] = event.size, stack, self.steps
            self._went_on += event.size
        elif event.action in ("free_requested", "free_completed"):
            self._frees = True
            self._live.pop(event.addr, None)
            self.freed += event.size * (event.action == "free_completed")

    @property
    def ends_with_failure(self) -> bool:
        """Whether the process allocated less after the failure than it had asked for."""
        return self.failed is not None and self._went_on < self.failed.size

    def growing(self) -> dict[_Stack, _Survivors]:
        """What was added step by step, without the step that was not over."""
        found: dict[_Stack, _Survivors] = {}
        # Without a free, the user had them left out, and everything seems to stay.
        for size, stack, step in self._live.values() if self._frees else ():
            if stack.kind in CAN_GROW and step < self.steps:
                one = found.setdefault(stack, _Survivors())
                one.bytes += size
                one.count += 1
                one.steps.add(step)
        return {stack: one for stack, one in found.items() if one.grow(self.steps)}


@dataclass
class _Device:
    """What the segments of one device hold."""

    failed: _Event | None
    reserved: int = 0
    allocated: int = 0
    largest_free: int = 0
    usable: int = 0
    expandable: bool = False
    held: Counter[_Stack] = field(default_factory=Counter)
    blocks: Counter[_Stack] = field(default_factory=Counter)

    def serves(self, segment: _Segment) -> bool:
        """Whether the failed request could be taken from a segment."""
        if self.failed is None:
            return True
        # torch lets a request use only its own stream; a graph or a MemPool has a pool of its own.
        of_all = not segment.segment_pool_id or not any(segment.segment_pool_id)
        small = segment.segment_type == "small"
        return (
            of_all and segment.stream == self.failed.stream and small == (self.failed.size <= SMALL)
        )


def devices(content: Readable, rank: int | None, file: str) -> tuple[DeviceMemory, ...]:
    """Return the memory on each device of one process.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no snapshot, damaged, or has too many blocks and events.
    """
    value = plain_pickle.load(content)
    try:
        return tuple(_Reader(rank, file).devices(value))
    except (AttributeError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"no snapshot of torch's allocator: {error}") from error


class _Reader:
    """Reads one snapshot."""

    def __init__(self, rank: int | None, file: str) -> None:
        self._rank, self._file = rank, file
        self._stacks = _Stacks()
        self._left = MOST_ROWS

    def devices(self, value: Any) -> Iterator[DeviceMemory]:
        # memory_snapshot() returns the segments alone.
        segments = value if isinstance(value, list) else value["segments"]
        traces = {} if isinstance(value, list) else self._traces(value.get("device_traces", ()))
        found: dict[int, _Device] = {}
        for raw in self._each(segments):
            segment = msgspec.convert(raw, _Segment)
            trace = traces.get(segment.device, _Trace())
            failed = trace.failed if trace.ends_with_failure else None
            self._segment(segment, found.setdefault(segment.device, _Device(failed)))
        for number, device in sorted(found.items()):
            yield self._summary(number, device, traces.get(number, _Trace()))

    def _each(self, rows: Iterable[object]) -> Iterator[object]:
        for row in rows:
            self._left -= 1
            if self._left < 0:
                raise ValueError(
                    f"more than {MOST_ROWS} blocks and events: record with max_entries=100000"
                )
            yield row

    def _traces(self, raw: Iterable[Iterable[object]]) -> dict[int, _Trace]:
        found = {}
        for number, events in enumerate(islice(raw, MOST_DEVICES)):
            trace = found[number] = _Trace()
            for one in self._each(events):
                event = msgspec.convert(one, _Event)
                trace.feed(event, self._stacks.of(event.frames))
        return found

    def _segment(self, segment: _Segment, into: _Device) -> None:
        into.reserved += segment.total_size
        into.expandable |= segment.is_expandable
        serves = into.serves(segment)
        for raw in self._each(segment.blocks):
            block = msgspec.convert(raw, _Block)
            if block.state in IN_USE:
                stack = self._stacks.of(block.frames)
                into.allocated += block.size
                into.held[stack] += block.size
                into.blocks[stack] += 1
            elif serves:
                into.usable += block.size
                into.largest_free = max(into.largest_free, block.size)

    def _summary(self, number: int, device: _Device, trace: _Trace) -> DeviceMemory:
        growing = trace.growing()
        # What grows is shown, however small it still is.
        ordered = sorted(device.held, key=lambda one: (one not in growing, -device.held[one]))
        shown = sorted(ordered[:MOST_HOLDERS], key=lambda one: -device.held[one])
        return DeviceMemory(
            rank=self._rank,
            file=self._file,
            device=number,
            # Blocks fill their segment; a damaged file may say otherwise.
            reserved=max(device.reserved, device.allocated),
            allocated=device.allocated,
            largest_free=device.largest_free,
            usable=device.usable,
            expandable=device.expandable,
            holders=tuple(
                Holder(
                    kind=one.kind,
                    line=one.line,
                    bytes=device.held[one],
                    blocks=device.blocks[one],
                    in_evaluation=one.in_evaluation,
                    grown=growing[one].bytes if one in growing else 0,
                    grown_tensors=growing[one].count if one in growing else 0,
                )
                for one in shown
            ),
            steps=trace.steps,
            sharded=self._stacks.shards,
            failure=self._failure(device.failed, trace.freed),
        )

    def _failure(self, failed: _Event | None, freed: int) -> MemoryFailure | None:
        if failed is None:
            return None
        stack = self._stacks.of(failed.frames)
        return MemoryFailure(
            bytes=failed.size,
            free=failed.device_free,
            kind=stack.kind,
            line=stack.line,
            in_evaluation=stack.in_evaluation,
            freed=freed,
        )
