"""The lines of a script at which all ranks call a collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from ddoctor.evidence.wrapping import Calls, CollectiveCalls

OBJECTS = frozenset(
    {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"}
)
"""They pickle what they send, and send its size first. No gradients travel so."""


LOOP = "rest"
"""The phase outside of the passes, where the loop's own calls of libraries are."""


def on_all_ranks(
    called: CollectiveCalls, wanted: Callable[[Calls], bool], *, also_by_libraries: bool = False
) -> list[Calls]:
    """Of each such line of the user's, its calls on one rank; the line that takes longest first.

    ``also_by_libraries``: also those that a library makes for a line of the loop, outside of the
    passes. The rank that arrives last does not wait for others: the least time of all ranks is the
    cost.
    """
    by_line: dict[tuple[str, str], list[Calls]] = defaultdict(list)
    for one in called.calls:
        asked = one.of_user or (also_by_libraries and one.within == LOOP)
        if asked and one.calls and wanted(one):
            by_line[one.operation, one.place].append(one)
    everywhere = len({one.rank for one in called.calls})
    lines = [
        min(rows, key=lambda one: one.seconds)
        for rows in by_line.values()
        if len(rows) == everywhere > 1
    ]
    return sorted(lines, key=lambda one: -one.seconds)


def of_objects(called: CollectiveCalls) -> Calls | None:
    """The line at which all ranks exchange Python objects for longest; None: there is none."""
    return next(iter(on_all_ranks(called, lambda one: one.operation in OBJECTS)), None)
