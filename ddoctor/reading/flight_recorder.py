"""Reads the records of torch's flight recorder, from a file or a socket, for one rank."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ddoctor.evidence.flight_records import Call, GroupCalls
from ddoctor.evidence.frames import Frame
from ddoctor.reading import plain_pickle
from ddoctor.reading.recorded_frames import RecordedFrame

# Bytes of a dump: 2,000 calls with 50 frames each take 2 MiB.
MOST_BYTES = 64 * 2**20
# Frames and shapes of all calls: a few bytes of a pickle can name one list many times.
MOST_PARTS = 1_000_000
# Calls of each group before and after the first open one: they show where ranks diverge.
FEW = 16
Placed = Callable[[str, int, str], Frame]
"""Makes a frame from file, line and function."""


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=10**18)]
_Text = Annotated[str, msgspec.Meta(max_length=10_000)]


class _Entry(msgspec.Struct):
    collective_seq_id: _Size
    process_group: tuple[_Text, _Text]
    profiling_name: _Text
    state: _Text
    time_created_ns: _Number
    is_p2p: bool = False
    retired: bool = False
    input_sizes: list[tuple[_Size, ...]] = []
    input_dtypes: list[_Text] = []
    frames: list[RecordedFrame] = []


class _Trace(msgspec.Struct):
    entries: list[_Entry] = []


class Trace:
    """The records of one rank."""

    def __init__(self, raw: bytes) -> None:
        """Parse ``raw``: JSON or a pickle, as ``torch.distributed.flight_recorder`` reads it.

        Raises:
            ValueError: it is neither, or incomplete.
        """
        try:
            if len(raw) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES >> 20} MiB")
            value = json.loads(raw) if raw[:1] == b"{" else plain_pickle.load(io.BytesIO(raw))
            if sum(map(_parts, value.get("entries", ()))) > MOST_PARTS:
                raise ValueError(f"more than {MOST_PARTS} frames and shapes")
            self._trace = msgspec.convert(value, _Trace)
        except Exception as error:  # a damaged pickle may raise anything
            raise ValueError(f"no records of torch's flight recorder: {error}") from error

    @property
    def newest(self) -> float:
        """Return when its last collective was called, in seconds since 1970; 0: never."""
        return max((one.time_created_ns for one in self._trace.entries), default=0) / 1e9

    def groups(self, placed: Placed) -> Iterator[GroupCalls]:
        """Yield the calls in each process group."""
        groups: dict[tuple[str, str, str], dict[int, _Entry]] = {}
        for one in self._trace.entries:
            if one.is_p2p:
                continue
            library = one.profiling_name.partition(":")[0]
            rows = groups.setdefault((library, *one.process_group), {})
            if rows and one.collective_seq_id < max(rows):
                # A new group may reuse the name of a destroyed one.
                rows.clear()
            # Coalesced calls share one number, and the last row describes all of them.
            rows[one.collective_seq_id] = one
        for (library, name, description), rows in groups.items():
            about = f" ({description})" if description not in ("", "undefined") else ""
            yield GroupCalls(
                group=f"{library} {name}{about}",
                calls=tuple(_call(one, placed) for one in _few(list(rows.values()))),
            )


def _parts(entry: Mapping[str, Any]) -> int:
    lists = (entry.get("frames", ()), entry.get("input_sizes", ()), entry.get("input_dtypes", ()))
    return sum(map(len, lists)) + sum(map(len, lists[1]))


def _few(rows: Sequence[_Entry]) -> Sequence[_Entry]:
    """Return the calls around the first one that is not over, or the last calls."""
    at = next((number for number, one in enumerate(rows) if not _over(one)), len(rows))
    return rows[max(0, at - FEW) : at + FEW]


def _over(entry: _Entry) -> bool:
    # NCCL retires a call without completing it at a timeout; gloo marks no call as completed.
    by_gloo = entry.profiling_name.startswith("gloo:")
    return entry.state == "completed" or (by_gloo and entry.retired)


def _call(entry: _Entry, placed: Placed) -> Call:
    # The innermost frame comes first.
    frames = (placed(one.filename, one.line, one.name) for one in entry.frames)
    return Call(
        number=entry.collective_seq_id,
        operation=entry.profiling_name.partition(":")[2],
        sizes=tuple(entry.input_sizes),
        types=tuple(entry.input_dtypes),
        state=entry.state,
        over=_over(entry),
        line=next((frame for frame in frames if frame.of_user), None),
    )
