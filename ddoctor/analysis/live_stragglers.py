"""Who keeps whom waiting in a live run that moves, as a look at all its ranks tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ddoctor.analysis.live_ranks import (
    AGAIN,
    FOR_OTHERS,
    IN_COLLECTION,
    IN_ENGINE,
    LiveRankState,
    collects_by_itself,
    moves,
    named,
)
from ddoctor.evidence.training import Frame
from ddoctor.models import Fix, Observation

# A slowdown of 10 % counts; of the time that the others wait, as much again is noise of sampling.
NOTABLE = 0.2
# Of the time of the look. A rank that comes to the others now and then waits there for a moment.
NEVER, ALWAYS = 0.05, 0.95
# A line is a rank's own where the others are met a quarter as often, or less.
OWN_LINE = 4.0
IN_MODEL = ("forward", "backward", "optimizer")
# What a rank does that has no part in a step of the training.
BESIDE = ("rest", "evaluation", "logging")
# The late rank waits at most so much of what the others do.
WAITS_LESS = 0.5


@dataclass(frozen=True, kw_only=True)
class LiveStraggler:
    """A rank for which the others wait, while it does something else."""

    rank: LiveRankState
    lost: float
    """What part of the time the others wait longer than it does."""
    activity: str
    """What it does meanwhile."""
    share: float
    """For what part of the time longer than the others."""
    calls: tuple[Frame, ...]
    """The user's own frames at which it is met there most often, beyond the others; the innermost
    last."""
    line: Frame | None
    """The innermost of them to which the others hardly come; the last, where they come to all."""
    often: bool = False
    """Whether the others wait again and again, not once for long."""

    @property
    def again(self) -> bool:
        """Whether it comes to that again and again, as far as one look tells: of a rank that is
        hardly ever elsewhere the others tell."""
        return self.often or self.rank.seen.visits(self.activity) >= AGAIN

    @property
    def in_model(self) -> bool:
        """Whether it is slow at a part of the step that all ranks have."""
        return self.activity in IN_MODEL

    @property
    def beside_the_training(self) -> bool:
        """Whether it is rank 0, with something that none of the others does."""
        return self.rank.rank == 0 and self.activity in BESIDE

    @property
    def collects_by_itself(self) -> bool:
        """Whether it is in garbage collections that Python begins."""
        return self.activity == IN_COLLECTION and any(
            map(collects_by_itself, self.rank.seen.activities)
        )


def straggler(every: Sequence[LiveRankState]) -> LiveStraggler | None:
    """The one rank that keeps the others waiting; None: there is none, or the run stands still."""
    if len(every) < 2 or not moves(every):
        return None
    least = min(every, key=lambda one: one.waiting)
    others = [one for one in every if one is not least]
    usual = median(one.waiting for one in others)
    if usual - least.waiting < NOTABLE or least.waiting > WAITS_LESS * usual:
        return None
    names = {met.name for met in least.seen.activities} - {*FOR_OTHERS, IN_ENGINE}
    more = {
        name: least.seen.share(name) - median(one.seen.share(name) for one in others)
        for name in names
    }
    activity = max(more, key=lambda name: more[name], default="")
    calls = _beyond(others, least, activity)
    return LiveStraggler(
        rank=least,
        lost=usual - least.waiting,
        activity=activity if more.get(activity, 0.0) >= NOTABLE / 2 else IN_ENGINE,
        share=more.get(activity, 0.0),
        calls=calls,
        line=_parting(others, least, calls),
        often=all(map(_waits_often, others)),
    )


def _waits_often(one: LiveRankState) -> bool:
    """Whether its waits are many: it wakes between them, and none is most of its waiting."""
    longest = one.seen.longest_sleep
    return longest is not None and AGAIN * longest <= one.waiting * one.seconds


def _parting(
    others: Sequence[LiveRankState], late: LiveRankState, calls: Sequence[Frame]
) -> Frame | None:
    """Where a rank goes another way than the others."""

    def share(one: LiveRankState, frame: Frame) -> float:
        met = sum(row.samples for row in one.seen.activities if frame in row.calls)
        return met / one.seen.samples

    usual = {frame: median(share(one, frame) for one in others) for frame in calls}
    # Further in, it may be in what all of them call.
    least = min(usual.values(), default=0.0) + NEVER
    for frame in reversed(calls):
        if usual[frame] <= least and OWN_LINE * usual[frame] <= share(late, frame):
            return frame
    return calls[-1] if calls else None


def _beyond(
    others: Sequence[LiveRankState], late: LiveRankState, activity: str
) -> tuple[Frame, ...]:
    """Where a rank is met at this for longer than the others are."""

    def share(one: LiveRankState, calls: tuple[Frame, ...]) -> float:
        every = one.seen.activities
        met = sum(row.samples for row in every if (row.name, row.calls) == (activity, calls))
        return met / one.seen.samples

    more = {
        row.calls: share(late, row.calls) - median(share(one, row.calls) for one in others)
        for row in late.seen.activities
        if row.name == activity
    }
    return max(more, key=lambda calls: more[calls], default=())


def keeps_all_waiting(one: LiveRankState, every: Sequence[LiveRankState]) -> bool:
    """Whether all others wait for this rank for the whole look, and it never comes to them."""
    waits = min(row.waiting for row in every if row is not one)
    return one.waiting <= NEVER and waits >= ALWAYS


def others_wait(one: LiveStraggler, every: Sequence[LiveRankState]) -> str:
    """Say ``while ranks 0, 2 wait for it 60 % of the time``."""
    rest = [row for row in every if row is not one.rank]
    verb = "wait" if len(rest) > 1 else "waits"
    return f"while {named(rest)} {verb} for it {one.lost:.0%} of the time"


def waits(every: Sequence[LiveRankState]) -> tuple[Observation, ...]:
    """How long each rank waited for others."""
    return tuple(
        Observation(
            name=f"waiting, rank {one.rank}", value=round(100 * one.waiting), unit="% of time"
        )
        for one in every
    )


def longer_limit() -> Fix:
    """For who must be waited for."""
    return Fix(
        summary="give it the time that it needs",
        paste=(
            "from datetime import timedelta\n\ndist.init_process_group(timeout=timedelta(hours=2))"
        ),
        language="python",
        caution="a rank that is dead is then noticed only after that time, too",
    )
