"""Steps take longer and longer, as some work of the step grows with the number of steps.

A list that gets a row in each step is gone through in each step: a metric over all samples so far,
a bank of features, a history that is copied or drawn. What costs nothing at first takes most of the
step after some thousands, and nothing happens at any one step that could be seen in a log.

Symptoms: the progress bar shows fewer steps per second each hour; a restart is fast again.

To fix it, keep sums instead of rows, or the newest rows alone.
"""

# Above 150 lines: a recorded run, and one that is followed to its end.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.stragglers import enough
from ddoctor.analysis.trend import Trend, trend
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.run_history import RankHistory, RunHistory
from ddoctor.evidence.steps import Lines, RankSteps, Steps
from ddoctor.models import Confidence, Cost, Finding, Fix, Severity, Where

EXPLAINS = (
    "step-loop-overhead",
    "per-rank-metrics-or-logging",
    "compute-bound",
    "scaling-efficiency-low",
)

PARTS: Mapping[str, tuple[str, ...]] = {
    "the wait for the loader": ("loader",),
    "copying batches to the device": ("to-device",),
    # What grows in the forward pass mostly has gradients.
    "the passes of the model": ("forward", "backward"),
    "the optimizer": ("optimizer",),
    "the training loop outside of the model": ("rest",),
}
"""The parts of a step that may grow alone, and their phases."""
# Workers that fall behind let a loader wait longer at first; only a whole run shows more.
LOADER = ("loader",)
# A machine that slows down, slows all phases.
TIMES, ASIDE = 1.3, 0.5
"""Times of its begin that a part has at least, and the share of that growth in all others."""
MOST = 0.5
"""Share of the samples that the later half has more, on the way to a line that is named."""


@dataclass(frozen=True, kw_only=True)
class _Grows:
    """A part of a rank's step that takes longer and longer."""

    rank: int
    part: str
    seconds: Trend
    """In each step."""
    steps: int
    share: float
    """What it grew by, of the step at the end."""


def in_judged_steps(
    steps: Steps, lines: Lines | None, history: RunHistory | None
) -> Iterator[Finding]:
    if history is not None or not enough(steps) or _longer_batches(steps):
        return
    numbers = range(steps.count)
    found = [
        one
        for rank in steps.ranks
        for one in _growing(
            rank.place.rank,
            numbers,
            {part: rank.spent(*phases) for part, phases in PARTS.items() if phases != LOADER},
            rank.local,
        )
    ]
    # What fills up to a bound grows at first as well.
    yield from _told(found, len(steps.ranks), lines, sure=live_cost.SURE)


def in_a_long_run(
    history: RunHistory, lines: Lines | None, steps: Steps | None
) -> Iterator[Finding]:
    if steps is not None and _longer_batches(steps):
        return
    found = [one for rank in history.ranks for one in _of_stretches(rank)]
    yield from _told(found, len(history.ranks), lines, sure=live_cost.TOLD)


def _of_stretches(rank: RankHistory) -> Iterator[_Grows]:
    # The first steps warm up.
    rows = [*islice(rank.stretches, 1, None)]
    each = [one.seconds / (one.last - one.first + 1) for one in rows]
    parts = {
        part: [
            sum(one.phases.get(phase, 0.0) for phase in phases) * seconds
            for one, seconds in zip(rows, each, strict=True)
        ]
        for part, phases in PARTS.items()
    }
    whole = [sum(some) for some in zip(*parts.values(), strict=True)]
    yield from _growing(rank.rank, [one.first for one in rows], parts, whole)


def _growing(
    rank: int,
    numbers: Sequence[int],
    parts: Mapping[str, Sequence[float]],
    whole: Sequence[float],
) -> Iterator[_Grows]:
    """The part that grows, if one does, and the others hardly."""
    of_all = trend(numbers, whole)
    known = {name: one for name, one in _trends(numbers, parts) if one.first >= 0}
    if of_all is None or not known:
        return
    name = max(known, key=lambda one: known[one].growth)
    grown = known[name]
    others, more = of_all.first - grown.first, of_all.growth - grown.growth
    alone = more * grown.first <= ASIDE * grown.growth * others
    if alone and grown.last >= TIMES * grown.first and grown.proves(live_cost.TOLD * of_all.last):
        yield _Grows(
            rank=rank,
            part=name,
            seconds=grown,
            steps=numbers[-1] - numbers[0] + 1,
            share=grown.growth / of_all.last,
        )


def _trends(
    numbers: Sequence[int], parts: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, Trend]]:
    for name, seconds in parts.items():
        found = trend(numbers, seconds)
        if found is not None:
            yield name, found


def _told(
    found: Sequence[_Grows], ranks: int, lines: Lines | None, *, sure: float
) -> Iterator[Finding]:
    if not found:
        return
    worst = max(found, key=lambda one: one.share)
    mine = [one for one in found if one.part == worst.part]
    line = _growing_line(lines, mine)
    grown = worst.seconds
    yield Finding(
        severity=Severity.WARNING if worst.share >= sure else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"in {worst.steps} steps, {worst.part} grew from "
            f"{1000 * grown.first:.3g} to {1000 * grown.last:.3g} ms of a step"
            f"{endings.at(line)}{endings.quoted(line)}: {100_000 * grown.per_step:.3g} ms more in "
            "each 100 steps"
        ),
        where=Where(ranks=tuple(one.rank for one in mine) if len(mine) < ranks else ()),
        cost=Cost(value=round(worst.share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="keep sums instead of all rows, or the newest rows alone",
                paste=(
                    "total, count = total + loss.detach(), count + 1  # not a list of all losses\n"
                    "bank = collections.deque(maxlen=4096)  # the newest rows"
                ),
                caution="what has a bound, as a queue of a fixed length, grows up to that alone",
                expected_gain=f"{worst.share:.0%} of the step by now, and more in each later one",
            ),
        ),
    )


def _growing_line(lines: Lines | None, found: Sequence[_Grows]) -> Frame | None:
    """The innermost line on the way to most of what the later half of the steps has more of.

    The work of a function is spread over its lines, and one of them has few samples. None: not
    known.
    """
    more, depth = Counter[Frame](), Counter[Frame]()
    rows = [lines.of(one.rank, *PARTS[one.part]) for one in found] if lines is not None else []
    for row in chain.from_iterable(rows):
        # In a pass of the model, the calls end where it begins.
        for place, frame in enumerate(dict.fromkeys((*row.calls, row.frame))):
            more[frame] += row.late - (row.samples - row.late)
            depth[frame] = max(depth[frame], place)
    most = max(more.values(), default=0)
    ways = [frame for frame, samples in more.items() if samples >= MOST * most > 0]
    return max(ways, key=lambda frame: (depth[frame], more[frame]), default=None)


def _longer_batches(steps: Steps) -> bool:
    """Whether the batches grow as well, as those of a curriculum."""
    return any(_grow(rank) for rank in steps.ranks)


def _grow(rank: RankSteps) -> bool:
    found = trend(range(len(rank.elements)), [float(one) for one in rank.elements])
    return found is not None and found.steady and found.growth > 0
