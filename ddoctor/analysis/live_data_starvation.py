"""Which ranks of a live run wait for data, and which part of the loading takes the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ddoctor.analysis.live_ranks import AGAIN, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.training import Frame

# Share of the samples: a loader that keeps up takes far less than half of the time.
STARVED = 0.5
LOADING = ("loader", "loader-wait")
# torch/utils/data/_utils/fetch.py calls the dataset's, and then the collate function.
FETCH = "torch/utils/data/_utils/fetch.py"
OF_THE_DATASET = ("__getitem__", "__getitems__", "__next__", "__iter__")
# Share of the busy workers, by one sample of each.
MOST = 0.5


def hungry(live: LiveState) -> tuple[LiveRankState, ...]:
    """The straggler that waits for data, or all ranks if all do; empty: neither, or not known."""
    workers = [one.seen.workers for one in live.ranks if one.seen.workers]
    if not live.moves or not all(any(row.stack for row in rows) for rows in workers):
        return ()
    found = live.straggler
    if found is not None:
        return (found.rank,) if found.activity in LOADING else ()
    return live.ranks if all(at_the_loader(one) >= STARVED for one in live.ranks) else ()


def at_the_loader(one: LiveRankState) -> float:
    """The share of the time that it waited for a batch or made one itself, 0 to 1."""
    return sum(one.seen.share(name) for name in LOADING)


def line(rows: Sequence[LiveRankState]) -> Frame | None:
    """The line at which the first of them takes its batches; None: not known."""
    met = rows[0].seen.activities
    return next((row.line for row in met if row.name in LOADING and row.line), None)


def again(rows: Iterable[LiveRankState]) -> bool:
    """Whether one of them reached its loader repeatedly, as far as the samples show."""
    visits = max(one.seen.visits(name) for one in rows for name in LOADING)
    return visits >= AGAIN or any(one.gets_batches for one in rows)


def collating(rows: Iterable[LiveRankState]) -> Frame | None:
    """The collate function, if it takes the time and not the items; else None."""
    at_work: list[Frame | None] = []
    for one in rows:
        stacks = [worker.stack for worker in one.seen.workers] or [one.seen.stack]
        for called in map(_called_by_fetch, stacks):
            if called is not None:
                dataset = called.function.rpartition(".")[2] in OF_THE_DATASET
                at_work.append(None if dataset else called)
    found = [frame for frame in at_work if frame is not None]
    return found[0] if found and len(found) >= MOST * len(at_work) else None


def _called_by_fetch(stack: Sequence[Frame]) -> Frame | None:
    """The function that makes a batch; None: no batch is in work."""
    for frame, inner in pairwise(stack):
        if frame.file.endswith(FETCH) and not inner.file.endswith(FETCH):
            return inner
    return None
