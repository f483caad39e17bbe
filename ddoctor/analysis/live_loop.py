"""Work of the training loop itself in a live run, before the model of a step or after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddoctor.analysis import gpu_lines, live_cost, loop_work
from ddoctor.analysis.live_ranks import AGAIN, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loop_work import BACKWARD_OR_WAIT, HOOKS, ON_BATCHES, REST, LoopLine, Place
from ddoctor.analysis.own_loader import OF_THE_STEP, TORN


@dataclass(frozen=True, kw_only=True)
class LoopWork:
    """Work that all ranks do again and again."""

    shares: Mapping[LiveRankState, float]
    """The share of the time, 0 to 1, of each rank."""
    lines: Sequence[LoopLine]
    """Those with the most samples first."""

    @property
    def share(self) -> float:
        """Their mean: that of one rank is known to a few percent only."""
        return fmean(self.shares.values())


def preparing(live: LiveState) -> LoopWork | None:
    """Work on a batch before the model gets it; None: too little."""
    return _work(live, ON_BATCHES)


def around(live: LiveState) -> LoopWork | None:
    """Other work of the loop, by its place or its text; None: too little."""
    return _work(live, {Place.EARLIER, Place.LATER, Place.HOOK})


def _work(live: LiveState, counted: Collection[Place]) -> LoopWork | None:
    if not live.moves or live.straggler is not None:
        return None
    # Of a rank that is nearly always there, the samples do not show how often it gets there.
    if max(one.seen.visits(name) for one in live.ranks for name in (REST, HOOKS)) < AGAIN:
        return None
    # A host that waits for its GPU has the time for such work.
    if any(one.seen.share(gpu_lines.AT_GPU) >= live_cost.SURE for one in live.ranks):
        return None
    met: Counter[LoopLine] = Counter()
    shares: dict[LiveRankState, float] = {}
    for one in live.ranks:
        here: Counter[LoopLine] = Counter()
        rows = one.seen.activities
        of_the_step = (*OF_THE_STEP, BACKWARD_OR_WAIT)
        steps = [row for row in rows if row.name in of_the_step and row.samples > TORN]
        apart = loop_work.apart(rows, steps)
        models = loop_work.calling_models(rows)
        for row in rows:
            if row.calls:
                place, line = loop_work.told(row, steps, apart=apart, models=models)
                here[line] += row.samples * (place in counted)
        shares[one] = here.total() / one.seen.samples
        met += here
    work = LoopWork(shares=shares, lines=[line for line, _ in met.most_common()])
    of_all = min(shares.values()) >= live_cost.TOLD / 2
    return work if of_all and work.share >= live_cost.TOLD else None
