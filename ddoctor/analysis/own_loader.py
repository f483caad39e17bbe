"""Loops that make their batches themselves, without a DataLoader."""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec.structs import replace

from ddoctor.analysis import endings, loop_work
from ddoctor.analysis.live_ranks import IN_ENGINE, OWN_LOADER
from ddoctor.analysis.live_stragglers import IN_MODEL
from ddoctor.analysis.loop_work import REST, Place
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity, LiveRank
from ddoctor.evidence.threads import ScriptThreads

OF_THE_STEP = (*IN_MODEL, IN_ENGINE)
# A stack may change while py-spy reads it, and then shows a line that does not belong to it.
TORN = 1
WAITS = re.compile(r"\.(?:get|result|recv)\(")
"""A line that gets a batch from another thread: of a queue, a future or a pipe."""


def told(seen: LiveRank) -> LiveRank:
    """The rank, with the samples in which it made its batches by that name."""
    steps = [row for row in seen.activities if row.name in OF_THE_STEP and row.samples > TORN]
    if any(row.name.startswith("loader") for row in seen.activities):
        return seen
    models = loop_work.calling_models(seen.activities)

    def feeds(row: Activity) -> bool:
        return loop_work.told(row, steps, models=models)[0] is Place.FEEDS

    rows = [
        replace(row, name=OWN_LOADER) if row.name == REST and row.calls and feeds(row) else row
        for row in seen.activities
    ]
    return replace(seen, activities=tuple(rows))


def maker(waits: Frame | None, threads: ScriptThreads | None, ranks: Collection[int]) -> str:
    """Where the thread is that fills what this line waits for; empty: none, or one of several.

    ``ranks``: those that wait.
    """
    if waits is None or threads is None or not WAITS.search(waits.text):
        return ""
    # One that waits for others' items makes none, such as a writer of logs.
    places = [
        one.place
        for one in threads.threads
        if one.rank in ranks and not WAITS.search(one.place.text)
    ]
    if not places or len({(one.file, one.function) for one in places}) > 1:
        return ""
    return f"; the script's other thread is mostly at {endings.place(places[0])}" + endings.quoted(
        places[0]
    )
