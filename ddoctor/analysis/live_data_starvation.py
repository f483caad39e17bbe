"""Which ranks of a live run wait for data, and which part of the loading takes the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from statistics import fmean

from ddoctor.analysis import live_cost
from ddoctor.analysis.live_ranks import AGAIN, OWN_LOADER, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity

# Share of the samples. A host that drives a GPU runs ahead of it, and has time to wait for data.
STARVED_ON_GPU = 0.5
# If all ranks wait less, but in turns, the others lose that time, too: the loaders of all ranks
# together explain most of the time that each waits for the others.
EXPLAINED = 0.6
STARTING = "loader-start"
# The mean of all ranks; samples of ten seconds show a tenth as 8 to 12 %.
OF_ALL = 0.09
LOADING = ("loader", "loader-wait", STARTING, OWN_LOADER)
# Workers were all replaced this often: an epoch has ended, and it was not the last.
EPOCHS = 2
# If they were replaced once, most of the samples at the loader are in one stretch.
IN_ONE_STRETCH = 0.8
# One in the start, one in the wait for the first batch, and one or two among the others.
VISITS_AT_A_RESTART = 3
# torch/utils/data/_utils/fetch.py calls the dataset's, and then the collate function.
DRAWS, LOADER = "_next_index", "torch/utils/data/dataloader.py"
"""Where the sampler gives the indices of a batch."""
FETCH = "torch/utils/data/_utils/fetch.py"
NO_ITEMS = ("", DRAWS)
OF_THE_DATASET = ("__getitem__", "__getitems__", "__next__", "__iter__")
# Share of the busy workers, by one sample of each.
MOST = 0.5


def hungry(live: LiveState) -> tuple[LiveRankState, ...]:
    """The straggler that waits for data, or all ranks if all do; empty: neither, or not known."""
    workers = [one.seen.workers for one in live.ranks if one.seen.workers]
    if not live.moves or not all(any(row.stack for row in rows) for rows in workers):
        return ()
    found, rows = live.straggler, live.ranks
    if found is not None:
        rows = (found.rank,)
    waits = _all_wait(live) if found is None else found.activity in LOADING
    # worker-restart-each-epoch
    restarts = any(2 * restarting(one) >= at_the_loader(one) or restarted_once(one) for one in rows)
    return rows if waits and not restarts else ()


def _all_wait(live: LiveState) -> bool:
    shares = [at_the_loader(one) for one in live.ranks]
    least = STARVED_ON_GPU if any(one.seen.on_gpu for one in live.ranks) else OF_ALL
    # Each is known to a few percent only.
    alike = min(shares) >= live_cost.TOLD / 2 and fmean(shares) >= least
    return alike or (min(shares) >= live_cost.TOLD and in_turns(live) > 0)


def in_turns(live: LiveState) -> float:
    """The share of the time, 0 to 1, that ranks wait for each other's loaders; 0: not notable."""
    wait = min(one.waiting for one in live.ranks)
    whole = sum(map(at_the_loader, live.ranks))
    return wait if wait >= live_cost.SURE and whole >= EXPLAINED * wait else 0.0


def restarting(one: LiveRankState) -> float:
    """The share of the time, 0 to 1, in which it starts workers and waits for their first batch.

    0: its workers were hardly ever replaced, or it also waits for most other batches.
    """
    started = one.seen.visits(STARTING)
    if one.seen.restarts < EPOCHS and started < AGAIN:
        return 0.0
    reached = sum(one.seen.visits(name) for name in LOADING)
    few = reached <= VISITS_AT_A_RESTART * max(one.seen.restarts, started)
    return at_the_loader(one) if few else one.seen.share(STARTING)


def restarted_once(one: LiveRankState) -> bool:
    """Whether its workers were replaced once, and it waits for that and hardly for batches."""
    if one.seen.restarts != 1 or restarting(one):
        return False
    stretches = [
        sum(turn.samples for turn in turns)
        for loads, turns in groupby(one.seen.turns, lambda turn: turn.name in LOADING)
        if loads
    ]
    return max(stretches, default=0) >= IN_ONE_STRETCH * max(1, sum(stretches))


def at_the_loader(one: LiveRankState) -> float:
    """The share of the time that it waited for a batch or made one itself, 0 to 1."""
    return sum(one.seen.share(name) for name in LOADING)


def turns(live: LiveState) -> str:
    """What ranks without a straggler lose by each other's loaders, to follow a sentence."""
    lost = in_turns(live) if live.straggler is None and len(live.ranks) > 1 else 0.0
    return f"; alternately, each is the last, and waits {lost:.0%} of the time" if lost else ""


def own(rows: Sequence[LiveRankState]) -> bool:
    """Whether the first of them makes its batches without a DataLoader."""
    return rows[0].seen.share(OWN_LOADER) > 0


def taken(rows: Sequence[LiveRankState]) -> Frame | None:
    """The line of the loop at which the first of them takes its batches; None: not known."""
    met = [row for row in rows[0].seen.activities if row.name in LOADING and row.calls]
    lines = (row.calls[row.entered - 1] if row.entered else row.calls[-1] for row in met)
    return next(lines, None)


def line(rows: Sequence[LiveRankState]) -> Frame | None:
    """The innermost line of the user's at which most batches are made; None: not known."""
    met: Counter[Frame] = Counter()
    for one in rows:
        if one.seen.workers:
            met.update(worker.line for worker in one.seen.workers if worker.line is not None)
            continue
        for row in one.seen.activities:
            if row.name in LOADING and row.calls[row.entered :]:
                met[row.calls[-1]] += row.samples
    return next((frame for frame, _ in met.most_common(1)), None)


def again(rows: Iterable[LiveRankState]) -> bool:
    """Whether one of them reached its loader repeatedly, as far as the samples show."""
    visits = max(one.seen.visits(name) for one in rows for name in LOADING)
    return visits >= AGAIN or any(one.gets_batches for one in rows)


def collating(rows: Iterable[LiveRankState]) -> Frame | None:
    """The collate function, if it takes the time and not the items; else None."""
    collate: Counter[Frame] = Counter()
    items = 0
    for one in rows:
        if one.seen.workers:
            every = [(called_by_fetch(worker.stack), 1) for worker in one.seen.workers]
        else:
            loading = [row for row in one.seen.activities if row.name.startswith("loader")]
            every = [(_made_by(row), row.samples) for row in loading if row.makes not in NO_ITEMS]
            # The sampler, or the loader itself.
            items += sum(row.samples for row in loading if row.makes in NO_ITEMS)
        for called, samples in every:
            if called is None:
                continue
            if called.bare in OF_THE_DATASET:
                items += samples
            else:
                collate[called] += samples
    if not collate or collate.total() < MOST * (collate.total() + items):
        return None
    return collate.most_common(1)[0][0]


def _made_by(row: Activity) -> Frame:
    """What the loader calls, at the user's line if it is the user's."""
    inner = row.calls[row.entered] if row.calls[row.entered :] else None
    if inner is not None and inner.bare == row.makes:
        return inner
    return Frame(file=FETCH, line=0, function=row.makes)


def draws(stack: Sequence[Frame]) -> bool:
    """Whether the sampler of a DataLoader is at work, for the indices of a batch."""
    return any(frame.bare == DRAWS and frame.file.endswith(LOADER) for frame in stack)


def drawing(rows: Iterable[LiveRankState]) -> bool:
    """Whether the time at the loader is mostly that of its sampler."""
    loading = [row for one in rows for row in one.seen.activities if row.name in LOADING]
    drawn = sum(row.samples for row in loading if row.makes == DRAWS)
    return drawn > sum(row.samples for row in loading) / 2


def called_by_fetch(stack: Sequence[Frame]) -> Frame | None:
    """The function that makes a batch; None: no batch is in work."""
    for frame, inner in pairwise(stack):
        if frame.file.endswith(FETCH) and not inner.file.endswith(FETCH):
            return inner
    return None
