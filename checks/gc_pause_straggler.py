"""Python's garbage collection pauses the ranks at different steps.

Now and then the garbage collector visits all objects of a process. This takes longer the more
objects the script keeps: samples in lists, file names, results. The ranks collect at different
steps, and each time all other ranks wait for the collecting rank.

Symptoms: some steps take longer, on another rank each time, and no GPU kernel explains it.

To fix it, freeze the objects that stay (``gc.freeze``), and collect the rest at the same step on
all ranks.
"""

# Above 150 lines: it judges recorded pauses and a live run, without the calls that the script makes
# itself.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import AGAIN, COLLECTS, collects_by_itself, named
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import NOTABLE
from ddoctor.analysis.stragglers import ENOUGH_STEPS, SLOWER_BY
from ddoctor.analysis.work_imbalance import spent
from ddoctor.evidence.steps import Lines, RankSteps, Steps
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# The default of torchtitan (GarbageCollection, gc_freq), which collects the first generation only.
EVERY = 50


def pauses(steps: Steps, lines: Lines | None, use: RankUse | None) -> Iterator[Finding]:
    count = steps.count
    if count < ENOUGH_STEPS or _by_the_script(steps, lines, use):
        return
    collecting = [spent(rank, ("gc",), count) for rank in steps.ranks]
    share = _longer(steps, collecting) / steps.step
    # A single pause of a rank does not show how often it happens.
    again = _longer(steps, [_without_longest(row) for row in collecting])
    if share < SLOWER_BY or again / steps.step < SLOWER_BY / 2:
        return
    most = max(map(sum, collecting))
    paused = [
        rank for rank, row in zip(steps.ranks, collecting, strict=True) if sum(row) >= most / 2
    ]
    longest = max(map(max, collecting))
    everybody = len(paused) == len(steps.ranks)
    who = "the ranks" if everybody else endings.ranks(one.place.rank for one in paused)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"garbage collection paused {who} for up to {1000 * longest:.3g} ms at different "
            f"steps, which makes a step of {1000 * steps.step:.3g} ms longer by "
            f"{1000 * share * steps.step:.3g} ms on average"
        ),
        evidence=tuple(_rows(paused, count)),
        where=Where.of([one.place for one in paused], every=steps.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_freeze(share),),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.moves:
        return
    met = [[row for row in rank.seen.activities if collects_by_itself(row)] for rank in live.ranks]
    shares = [
        sum(row.samples for row in rows) / rank.seen.samples
        for rank, rows in zip(live.ranks, met, strict=True)
    ]
    share = max(shares, default=0.0)
    visits = sum(max((row.visits for row in rows), default=0) for rows in met)
    if share < NOTABLE / 2 or visits < AGAIN:
        return
    paused = [rank for rank, part in zip(live.ranks, shares, strict=True) if part >= share / 2]
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"Python's automatic garbage collection paused {named(paused)} for up to {share:.0%} "
            "of the time, and all other ranks wait for each pause"
        ),
        evidence=tuple(
            Observation(
                name=f"in garbage collection, rank {rank.rank}",
                value=round(100 * part),
                unit="% of time",
            )
            for rank, part in zip(live.ranks, shares, strict=True)
        ),
        where=Where.of(paused, every=live.ranks),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(_freeze(share),),
    )


def _freeze(share: float) -> Fix:
    return Fix(
        summary="freeze the objects that stay, and collect the rest at the same step on all ranks",
        paste=(
            "import gc\n"
            "\n"
            "# once, after the model, the data and the first steps are there:\n"
            "gc.collect()\n"
            "gc.freeze()\n"
            "gc.disable()\n"
            "# in the loop, on every rank:\n"
            f"if step % {EVERY} == 0:\n"
            "    gc.collect(1)"
        ),
        language="python",
        caution="reference cycles stay in memory until then; watch the host memory",
        expected_gain=f"{share:.0%} of the step",
    )


def _longer(steps: Steps, pauses: Sequence[Sequence[float]]) -> float:
    """Seconds by which these pauses, one row per rank, make the mean step longer."""
    local = [rank.local[: steps.count] for rank in steps.ranks]
    without = [
        [all_of_it - pause for all_of_it, pause in zip(own, row, strict=True)]
        for own, row in zip(local, pauses, strict=True)
    ]
    slowest = (map(max, zip(*rows, strict=True)) for rows in (local, without))
    return fmean(now - then for now, then in zip(*slowest, strict=True))


def _without_longest(row: Sequence[float]) -> Sequence[float]:
    longest = row.index(max(row))
    return [*row[:longest], 0.0, *row[longest + 1 :]]


def _by_the_script(steps: Steps, lines: Lines | None, use: RankUse | None) -> bool:
    """Whether the script itself calls the collector about as often as it runs: another cause."""
    for rank in steps.ranks:
        events = sum(second > 0 for second in spent(rank, ("gc",), steps.count))
        for flags in use.flags if use is not None else ():
            if flags.rank == rank.place.rank and events and flags.collected >= events / 2:
                return True
        met = lines.of(rank.place.rank, "gc") if lines is not None else ()
        if met and COLLECTS in met[0].text:
            return True
    return False


def _rows(paused: Sequence[RankSteps], count: int) -> Iterator[Observation]:
    for rank in paused:
        seconds = spent(rank, ("gc",), count)
        yield Observation(
            name=f"garbage collection in a step, rank {rank.place.rank}",
            value=round(1000 * fmean(seconds), 2),
            unit="ms",
            expected=0.0,
            source="the mean; gc.callbacks",
        )
