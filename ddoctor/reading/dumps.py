"""Reads the dumps of torch's flight recorder, a file of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddoctor.evidence.flight_records import FlightDumps, RankRecords
from ddoctor.reading.flight_recorder import MOST_BYTES, Trace
from ddoctor.reading.inputs import Content, Input
from ddoctor.reading.recorded_frames import placed

# torch puts the rank at the end: nccl_trace_rank_3, comm_lib_trace_rank_3; people add .json.
RANK = re.compile(r"(\d{1,7})(?:\.\w{1,10}){0,9}$")


def is_dump(first: bytes) -> bool:
    """Whether a file may be one, by its first bytes: of a pickle, or of JSON with entries."""
    pickled = first.startswith(b"\x80") and (b"entries" in first or b"pg_config" in first)
    # In JSON the keys are sorted: the entries come first.
    told = b'"pg_config"' in first or (b'"entries"' in first and b'"record_id"' in first)
    return pickled or (first.lstrip().startswith(b"{") and told)


@dataclass
class Dumps:
    """Those of one run."""

    _found: dict[int, tuple[str, float, Trace]] = field(default_factory=dict)

    def read(self, given: Input, content: Content) -> None:
        """Read the dump of one rank; its name says which.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged, no rank is in its name, or another file is of the same rank.
        """
        trace = Trace(content.read(MOST_BYTES + 1))
        named = RANK.search(given.path.name)
        if named is None:
            raise ValueError("a dump of the flight recorder whose name does not end with the rank")
        earlier = self._found.setdefault(int(named[1]), (given.name, given.written, trace))
        if earlier[0] != given.name:
            raise ValueError(f"{earlier[0]} is a dump of the same rank: give those of one run")

    def sections(self) -> Iterator[FlightDumps]:
        """What the dumps say together."""
        if not self._found:
            return
        rows = sorted(self._found.items())
        newest = max(trace.newest for _, (_, _, trace) in rows)
        yield FlightDumps(
            files=tuple(name for _, (name, _, _) in rows),
            ranks=tuple(
                RankRecords(
                    rank=rank,
                    pid=0,
                    told_by="dump file",
                    idle_seconds=round(max(0.0, written - newest), 1),
                    groups=tuple(trace.groups(placed)),
                )
                for rank, (_, written, trace) in rows
            ),
        )
