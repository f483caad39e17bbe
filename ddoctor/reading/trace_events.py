"""The events of a trace that torch's profiler wrote: Kineto's, in the format of Chrome.

The format is that of libkineto's ``output_json.cpp``, with the arguments of ``record_param_comms``
(``ParamCommsUtils.hpp``) at the kernels of NCCL.
"""

from __future__ import annotations

import re
from math import prod
from typing import Annotated, Any

import msgspec

# Decompressed. A step of a large model takes 10 to 40 MB, so this holds dozens of them.
MOST_BYTES = 2**30
# An event has at least one object, and mostly two; in files of torch one takes 350 bytes.
MOST_OBJECTS = 8_000_000
MOST_NUMBERS = 10**15
"""In one tensor."""

_Microseconds = Annotated[float, msgspec.Meta(ge=-1e17, le=1e17)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]


class Arguments(msgspec.Struct, gc=False):
    """Those that are needed; the others are skipped, and take no memory."""

    correlation: int = 0
    """Joins a kernel or a copy to the host's call that launched it."""
    device: int | None = None
    bytes: _Count = 0
    collective: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    members: Any = msgspec.field(name="Process Group Ranks", default="")
    size: _Count = msgspec.field(name="Group size", default=0)
    elements: _Count = msgspec.field(name="In msg nelems", default=0)
    dtype: str = ""
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: _Microseconds = 0.0
    dur: _Microseconds = 0.0
    args: Arguments | None = None

    @property
    def end(self) -> float:
        return self.ts + max(0.0, self.dur)


class Distributed(msgspec.Struct):
    """The process group of the rank that wrote the trace."""

    rank: _Count | None = None
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


class Trace(msgspec.Struct):
    """One file."""

    events: list[Event] = msgspec.field(name="traceEvents")
    distributed: Distributed | None = msgspec.field(name="distributedInfo", default=None)
    host: str = msgspec.field(name="host_name", default="")


_DECODER = msgspec.json.Decoder(Trace, strict=False)
_SHAPES = msgspec.json.Decoder(
    Annotated[
        list[
            Annotated[
                list[Annotated[int, msgspec.Meta(ge=0, le=2**40)]], msgspec.Meta(max_length=64)
            ]
        ],
        msgspec.Meta(max_length=10_000),
    ]
)
_KINDS = msgspec.json.Decoder(list[str])
# Names of dtypes in record_param_comms, and in the inputs of operators.
_WIDTHS = {
    **dict.fromkeys(("Double", "Long", "double", "long int", "long"), 8),
    **dict.fromkeys(("Half", "BFloat16", "Short", "c10::Half", "c10::BFloat16", "short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool", "unsigned char", "signed char", "bool"), 1),
}


def is_trace(first: bytes) -> bool:
    """Whether a file may be one, by its first bytes."""
    if not first.lstrip().startswith(b"{"):
        return False
    of_kineto = b'"schemaVersion"' in first and b'"deviceProperties"' in first
    return of_kineto or re.search(rb'"traceEvents"\s*:', first) is not None


def decoded(raw: bytes) -> Trace:
    """Decode a file.

    Raises:
        ValueError: it is too large, damaged, or no trace.
    """
    if len(raw) > MOST_BYTES:
        raise ValueError(
            f"a trace of more than {MOST_BYTES >> 20} MiB: profile fewer steps, without stacks"
        )
    if raw.count(b"{") > MOST_OBJECTS:
        raise ValueError(f"a trace of more than {MOST_OBJECTS:,} events and arguments")
    try:
        return _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no trace of torch's profiler: {error}") from error


def size(arguments: Arguments | None) -> int | None:
    """Bytes of a collective on this rank; None: the trace does not say it."""
    if arguments is None:
        return None
    if arguments.collective:
        return arguments.elements * _WIDTHS.get(arguments.dtype, 4)
    rows = _inputs(arguments)
    return sum(numbers * _WIDTHS.get(kind, 4) for numbers, kind in rows) if rows else None


def numbers(arguments: Arguments | None) -> int:
    """Numbers in the input tensors of an operator; 0: the trace has no shapes."""
    return sum(each for each, _ in _inputs(arguments)) if arguments is not None else 0


def _inputs(arguments: Arguments) -> list[tuple[int, str]]:
    """Numbers and dtype of each input; the profiler writes them as record_shapes asks for it."""
    if not arguments.shapes or not arguments.types:
        return []
    try:
        shapes = _SHAPES.decode(arguments.shapes)
        kinds = _KINDS.decode(arguments.types)
    except msgspec.DecodeError:
        # The shapes of a list of tensors are nested; such operators only pass them on.
        return []
    # A number has the shape of none.
    return [
        (min(prod(shape), MOST_NUMBERS), kind) if shape else (0, kind)
        for shape, kind in zip(shapes, kinds, strict=False)
    ]
