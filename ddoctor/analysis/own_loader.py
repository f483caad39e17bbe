"""Loops that make their batches themselves, without a DataLoader."""

from __future__ import annotations

from msgspec.structs import replace

from ddoctor.analysis import loop_work
from ddoctor.analysis.live_ranks import IN_ENGINE, OWN_LOADER
from ddoctor.analysis.live_stragglers import IN_MODEL
from ddoctor.analysis.loop_work import REST, Place
from ddoctor.evidence.live import LiveRank

OF_THE_STEP = (*IN_MODEL, IN_ENGINE)
# A stack may change while py-spy reads it, and then shows a line that does not belong to it.
TORN = 1


def told(seen: LiveRank) -> LiveRank:
    """The rank, with the samples in which it made its batches by that name."""
    steps = [row for row in seen.activities if row.name in OF_THE_STEP and row.samples > TORN]
    if any(row.name.startswith("loader") for row in seen.activities):
        return seen
    rows = [
        replace(row, name=OWN_LOADER)
        if row.name == REST and row.calls and loop_work.told(row, steps)[0] is Place.FEEDS
        else row
        for row in seen.activities
    ]
    return replace(seen, activities=tuple(rows))
