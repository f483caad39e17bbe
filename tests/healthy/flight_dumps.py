"""The dumps of a run whose ranks wait for nobody."""

from __future__ import annotations

from ddoctor.evidence.flight_records import FlightDumps
from ddoctor.evidence.section import Section
from tests.flight_records import call, records

SECTIONS: tuple[Section, ...] = (
    FlightDumps(
        files=tuple(f"fr_trace_{rank}" for rank in range(8)),
        ranks=tuple(
            records(rank, call(39, over=True), call(40, over=True), told_by="dump file", idle=600)
            for rank in range(8)
        ),
    ),
)
