"""What 8 ranks tell that go from step to step: each with a collective that is not over, one of them
two collectives behind."""

from __future__ import annotations

from tests.flight_records import call, recorded, records
from tests.healthy.host import HOST

SECTIONS = (
    recorded(
        *(
            records(rank, call(39, over=True), call(40, over=rank != 3), call(41), idle=0.1)
            for rank in range(7)
        ),
        records(7, call(39, over=True), idle=0.1),
        host=HOST,
    ),
)
