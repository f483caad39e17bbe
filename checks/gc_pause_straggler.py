"""Python's garbage collection pauses the ranks at different steps.

Now and then the garbage collector visits all objects of a process. This takes longer the more
objects the script keeps: samples in lists, file names, results. The ranks collect at different
steps, and each time all other ranks wait for the collecting rank.

Symptoms: some steps take longer, on another rank each time, and no GPU kernel explains it.

To fix it, freeze the objects that stay (``gc.freeze``), and collect the rest at the same step on
all ranks.
"""

# Above 150 lines: recorded steps and a live run, and three causes of collections that are not told.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from ddoctor.analysis import called_lines, endings, live_cost
from ddoctor.analysis.live_ranks import (
    AGAIN,
    COLLECTS,
    IN_COLLECTION,
    collects_by_itself,
    named,
    shares,
)
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loop_lines import asks_to_collect, makes_garbage, mostly_collects
from ddoctor.analysis.stragglers import ENOUGH_STEPS, SLOWER_BY, most_affected, without
from ddoctor.analysis.work_imbalance import Rows
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.training import RankUse
from ddoctor.evidence.wrapping import CollectiveCalls
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# The default of torchtitan (GarbageCollection, gc_freq), which collects the first generation only.
EVERY = 50


def pauses(
    steps: Steps,
    lines: Lines | None,
    use: RankUse | None,
    collective_calls: CollectiveCalls | None,
) -> Iterator[Finding]:
    if steps.count < ENOUGH_STEPS or _by_the_script(steps, lines, use):
        return
    if lines is not None and collective_calls is not None and _received(lines, collective_calls):
        return
    collecting = tuple(rank.spent("gc") for rank in steps.ranks)
    share = _longer(steps, collecting) / steps.step
    # A single pause of a rank does not show how often it happens.
    again = _longer(steps, tuple(map(_without_longest, collecting)))
    if share < SLOWER_BY or again / steps.step < SLOWER_BY / 2:
        return
    paused = most_affected(steps, collecting)
    everybody = len(paused) == len(steps.ranks)
    who = "the ranks" if everybody else endings.ranks(one.rank for one in paused)
    alone = len(steps.ranks) == 1
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"garbage collection paused {'the training' if alone else who} for up to "
            f"{1000 * max(map(max, collecting)):.3g} ms"
            f"{'' if alone else ' at different steps'}, which makes a step of "
            f"{1000 * steps.step:.3g} ms longer by {1000 * share * steps.step:.3g} ms on average"
        ),
        evidence=tuple(
            Observation(
                name=f"garbage collection in a step, rank {rank.place.rank}",
                value=round(1000 * fmean(row), 2),
                unit="ms",
                expected=0.0,
                source="the mean; gc.callbacks",
            )
            for rank, row in zip(steps.ranks, collecting, strict=True)
            if rank.place in paused
        ),
        where=Where.of(paused, every=steps.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_freeze(share),),
        title="Python's garbage collection pauses the training" if alone else "",
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.moves:
        return
    collecting = {rank: rank.share(collects_by_itself) for rank in live.ranks}
    share = max(collecting.values(), default=0.0)
    paused = [rank for rank, part in collecting.items() if part >= share / 2]
    visits = sum(rank.seen.visits(IN_COLLECTION) for rank, part in collecting.items() if part)
    if share < live_cost.TOLD or visits < AGAIN:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"Python's automatic garbage collection paused {named(paused)} for up to {share:.0%} "
            "of the time, and all other ranks wait for each pause"
        ),
        evidence=shares("in garbage collection", collecting),
        where=Where.of(paused, every=live.ranks),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(_freeze(share),),
    )


def _freeze(share: float) -> Fix:
    return Fix.python(
        summary="freeze the objects that stay, and collect the rest at the same step on all ranks",
        paste=(
            "import gc\n\n"
            "# once, after the model, the data and the first steps are there:\n"
            "gc.collect()\n"
            "gc.freeze()\n"
            "gc.disable()\n"
            "# in the loop, on every rank:\n"
            f"if step % {EVERY} == 0:\n"
            "    gc.collect(1)"
        ),
        caution="reference cycles stay in memory until then; watch the host memory",
        expected_gain=f"{share:.0%} of the step",
    )


def _longer(steps: Steps, pauses: Rows) -> float:
    """Seconds by which these pauses, one row per rank, make the mean step longer."""
    local = tuple(rank.local for rank in steps.ranks)
    slowest = (map(max, zip(*rows, strict=True)) for rows in (local, without(local, pauses)))
    return fmean(now - then for now, then in zip(*slowest, strict=True))


def _without_longest(row: Sequence[float]) -> tuple[float, ...]:
    longest = row.index(max(row))
    return (*row[:longest], 0.0, *row[longest + 1 :])


def _by_the_script(steps: Steps, lines: Lines | None, use: RankUse | None) -> bool:
    """Whether the script itself calls the collector as often, or makes the garbage at one line."""
    for rank in steps.ranks:
        events = sum(second > 0 for second in rank.spent("gc"))
        for flags in use.flags if use is not None else ():
            if flags.rank == rank.place.rank and events and flags.collected >= events / 2:
                return True
        met = lines.of(rank.place.rank, "gc") if lines is not None else ()
        if met and (COLLECTS in met[0].text or asks_to_collect(met[0])):
            return True
        # Of a line that makes so many objects, step-loop-overhead tells.
        if lines is not None and makes_garbage(lines, rank.place.rank):
            return True
    return False


def _received(lines: Lines, called: CollectiveCalls) -> bool:
    """Whether the ranks exchange the objects that they collect, of which another cause tells."""
    line = called_lines.of_objects(called)
    if line is None:
        return False
    collects = [mostly_collects(lines, one.rank) for one in lines.ranks]
    return any(one is not None and f"{one.file}:{one.line}" == line.place for one in collects)
