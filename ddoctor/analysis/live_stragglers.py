"""Which rank keeps the others waiting in a live run that moves, by samples of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.live_ranks import (
    AGAIN,
    FOR_OTHERS,
    IN_COLLECTION,
    IN_ENGINE,
    LiveRankState,
    collects_by_itself,
    named,
    phase,
    shares,
)
from ddoctor.analysis.loop_work import HOOKS
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity
from ddoctor.models import Fix, Observation

# Share of the sampled time. A rank that reaches the collective now and then waits there briefly.
NEVER, ALWAYS = 0.05, 0.95
# A line is specific to a rank if the others have a quarter of its samples there, or less.
OWN_LINE = 4.0
IN_MODEL = ("forward", "backward", "optimizer")
# Activities that are not part of a training step.
OUTSIDE_THE_STEP = ("rest", "evaluation", "logging", HOOKS)
# A note.
BELOW_SURE = 0.95 * live_cost.SURE
# Work that no other rank does, seen repeatedly: no chance, even where it takes so little.
REPEATED = 0.06
# Cores of one host differ by less, and a rank that is on its CPU all the while has it for itself.
MORE = 1.6
ON_ITS_CPU = 0.85
HANDS_ON = ("send", "recv", "_wait_batch_p2p")
"""Where the stages of a pipeline wait for each other: one may have more layers."""
# The straggler waits at most for this share of the others' waiting time.
WAITS_LESS = 0.5


@dataclass(frozen=True, kw_only=True)
class LiveStraggler:
    """A rank for which the others wait, while it does something else."""

    rank: LiveRankState
    others: Sequence[LiveRankState]
    lost: float
    """The share of the time, 0 to 1, that the others wait longer than it does."""
    activity: str
    """Its activity meanwhile."""
    share: float
    """The share of the time, 0 to 1, that it spends there longer than the others."""
    calls: tuple[Frame, ...]
    """The user's frames with the most samples beyond those of the others; the innermost last."""
    line: Frame | None
    """The innermost of these frames that the others hardly run; else the last one."""
    apart: bool = False
    """Whether the others hardly run that line."""
    hidden: bool = False
    """Whether the others do not wait for it by their sleep: they compute slowly during its work."""
    begin: Frame | None = None
    """The line from which it enters the activity, if the others never reach it."""

    @property
    def at(self) -> str:
        """Return `` at train.py:30 in main (`save()`)``; empty: not known."""
        return endings.at(self.line) + endings.quoted(self.line)

    @property
    def again(self) -> bool:
        """Whether this recurs, as far as the samples show.

        If the rank is hardly ever elsewhere, the waits of the others show it.
        """
        often = all(
            one.seen.longest_sleep is not None
            and AGAIN * one.seen.longest_sleep <= one.waiting * one.seconds
            for one in self.others
        )
        return often or self.rank.seen.visits(self.activity) >= AGAIN

    @property
    def in_model(self) -> bool:
        """Whether it is slow in a part of the step that all ranks have."""
        return self.activity in IN_MODEL

    @property
    def in_passes(self) -> bool:
        """Whether it takes longer for the passes of the model, with no work that is its own."""
        return phase(self.activity) in ("forward", "backward") and not self.extra_work

    @property
    def of_the_same(self) -> float:
        """How many times as much of both passes it computes as the others, at the same lines.

        0: not notably more, it may be kept from its CPU, or its cores may be other ones.
        """
        ranks, own = (self.rank, *self.others), self.rank
        staged = any(row.makes in HANDS_ON for one in ranks for row in one.seen.activities)
        if not self.in_passes or self.apart or staged or any(one.seen.on_gpu for one in ranks):
            return 0.0
        if len({one.host for one in ranks}) > 1 or _on_cpu(own) < ON_ITS_CPU * (1 - own.waiting):
            return 0.0
        passes = ("forward", "backward")
        parts = [[one.shares.get(name, 0.0) for one in ranks] for name in passes]
        parts.append([one.seen.cpu_seconds / one.seconds for one in ranks])
        times = [first / max(median(others), NEVER) for first, *others in parts]
        return min(times) if min(times) >= MORE else 0.0

    @property
    def extra_work(self) -> bool:
        """Whether it is rank 0 with work that no other rank does, again and again.

        It may call the model at a line that the others never reach, as for an evaluation.
        """
        apart = self.activity in IN_MODEL and self.begin is not None
        return self.rank.rank == 0 and self.again and (self.activity in OUTSIDE_THE_STEP or apart)

    @property
    def collects_by_itself(self) -> bool:
        """Whether it is in automatic garbage collections."""
        return self.activity == IN_COLLECTION and any(
            map(collects_by_itself, self.rank.seen.activities)
        )

    @property
    def never_arrives(self) -> bool:
        """Whether all others wait for it during all samples."""
        waits = min(one.waiting for one in self.others)
        return self.rank.waiting <= NEVER and waits >= ALWAYS

    @property
    def others_wait(self) -> str:
        """Return ``while ranks 0, 2 wait for it 60% of the time``."""
        if self.hidden:
            return f"while {named(self.others)} {'do' if len(self.others) > 1 else 'does'} not"
        verb = "wait" if len(self.others) > 1 else "waits"
        return f"while {named(self.others)} {verb} for it {self.lost:.0%} of the time"

    @property
    def waits(self) -> tuple[Observation, ...]:
        """The share of the time that each rank waited for others, as evidence."""
        every = sorted((self.rank, *self.others), key=lambda one: one.rank)
        return shares("waiting", {one: one.waiting for one in every})


def _on_cpu(one: LiveRankState) -> float:
    """The share of the time, 0 to 1, that its main thread was on a CPU."""
    return one.seen.main_cpu_seconds / one.seconds if one.seconds else 0.0


def straggler(every: Sequence[LiveRankState]) -> LiveStraggler | None:
    """The rank that keeps the others waiting in a run that moves; None: there is none."""
    if len(every) < 2:
        return None
    least = min(every, key=lambda one: one.waiting)
    others = [one for one in every if one is not least]
    usual = median(one.waiting for one in others)
    lost = usual - least.waiting
    if lost < max(live_cost.TOLD, _noise(every)):
        return _next_to_the_others(every)
    # What all ranks do explains more than chance among them.
    if lost < live_cost.SURE and _of_all(every) > lost:
        return None
    names = {met.name for met in least.seen.activities} - {*FOR_OTHERS, IN_ENGINE}
    more = {
        name: least.seen.share(name) - median(one.seen.share(name) for one in others)
        for name in names
    }
    activity = max(more, key=lambda name: more[name], default="")
    found = _late(least, others, activity, lost=lost, share=more.get(activity, 0.0))
    # Slow collectives keep the straggler waiting as well: then only a line that no other rank runs
    # tells its own work.
    at_it = least.share(lambda row: row.name == activity and found.line in row.calls)
    apart = at_it if found.apart else 0.0
    alone = more.get(activity, 0.0) >= lost and apart >= max(live_cost.TOLD, lost / 2)
    private = _private(others, least) - median(_private([least], one) for one in others)
    if least.waiting > WAITS_LESS * usual and not alone and private < lost:
        return None
    if found.share < lost / 2:
        return replace(found, activity=IN_ENGINE)
    return found


def repeated(every: Sequence[LiveRankState]) -> LiveStraggler | None:
    """The rank that repeatedly calls what no other rank calls, while these wait for it.

    It costs less than a ``straggler`` does. None: there is none, or several have such calls, as the
    stages of a pipeline do.
    """
    if len(every) < 2:
        return None
    own = {one: _own_calls(every, one) for one in every}
    share = {one: sum(map(_samples, own[one].values())) / one.seen.samples for one in every}
    late = max(every, key=lambda one: share[one])
    others = [one for one in every if one is not late]
    if not own[late] or max(share[one] for one in others) >= share[late] / 2:
        return None
    first, rows = max(own[late].items(), key=lambda item: _samples(item[1]))
    most, longer = max(rows, key=lambda row: row.samples), _samples(rows) / late.seen.samples
    lost = median(one.waiting for one in others) - late.waiting
    # Ranks that share CPUs compute slower during its work, and so wait less for it.
    if longer < REPEATED or lost < longer / 4:
        return None
    return LiveStraggler(
        rank=late,
        others=others,
        lost=min(lost, longer),
        activity=most.name,
        share=longer,
        calls=most.calls,
        line=first,
        apart=True,
        # In the model, it is slow in what all ranks do.
        begin=first if first in most.calls[: most.entered] else None,
    )


def _own_calls(
    every: Sequence[LiveRankState], late: LiveRankState
) -> Mapping[Frame, Sequence[Activity]]:
    """Its activities at calls that no other rank was sampled in, and that it made repeatedly."""
    others = [one for one in every if one is not late]
    reached = _reached(others)
    found: dict[Frame, list[Activity]] = defaultdict(list)
    for row in late.seen.activities:
        if row.name in IN_MODEL and not _all_call(others, late, row.name):
            continue
        if row.name in (*IN_MODEL, *OUTSIDE_THE_STEP):
            own = (met for met in zip(row.calls, row.times, strict=False) if met[0] not in reached)
            first, times = next(own, (None, 0))
            if first is not None and times >= AGAIN:
                found[first].append(row)
    return found


def _samples(rows: Sequence[Activity]) -> int:
    return sum(row.samples for row in rows)


def _late(
    late: LiveRankState,
    others: Sequence[LiveRankState],
    activity: str,
    *,
    lost: float,
    share: float,
    hidden: bool = False,
) -> LiveStraggler:
    """This rank, with the lines of its activity."""
    calls, entered = _beyond(others, late, activity)
    own = _own(others, late, calls)
    return LiveStraggler(
        rank=late,
        others=others,
        lost=lost,
        activity=activity,
        share=share,
        calls=calls,
        line=own[-1] if own else calls[-1] if calls else None,
        apart=bool(own),
        hidden=hidden,
        begin=_begin(others, late, activity, [one for one in calls[:entered] if one in own]),
    )


def _next_to_the_others(every: Sequence[LiveRankState]) -> LiveStraggler | None:
    """The only rank that works outside the model, on CPUs, for a large share of the time.

    On cores that they share, the others compute slower meanwhile, and so wait less for it. How much
    the run loses is known by half at most.
    """
    if any(one.seen.on_gpu for one in every):
        return None
    outside = {one: _outside_the_model(one) for one in every}
    late = max(every, key=lambda one: sum(outside[one].values()))
    others = [one for one in every if one is not late]
    activity = max(outside[late], key=lambda name: outside[late][name], default="")
    extra = outside[late].get(activity, 0.0) - max(sum(outside[one].values()) for one in others)
    together = min(one.waiting for one in others) >= live_cost.TOLD / 2
    if extra < live_cost.SURE or not together or late.seen.visits(activity) < AGAIN:
        return None
    lost = min(extra / 2, BELOW_SURE)
    return _late(late, others, activity, lost=lost, share=extra, hidden=True)


def _private(others: Sequence[LiveRankState], late: LiveRankState) -> float:
    """The share of the time, 0 to 1, outside the model at lines that the others hardly run.

    What a callback does may be of several activities: it saves, reads back, and logs.
    """
    model = (*FOR_OTHERS, *IN_MODEL, IN_ENGINE)
    return late.share(lambda row: row.name not in model and bool(_own(others, late, row.calls)))


def _outside_the_model(one: LiveRankState) -> Mapping[str, float]:
    """The share of the time, 0 to 1, of each of its activities that is no part of the model."""
    beside = {row.name for row in one.seen.activities} - {*FOR_OTHERS, *IN_MODEL, IN_ENGINE}
    return {name: one.seen.share(name) for name in beside}


def _noise(every: Sequence[LiveRankState]) -> float:
    """By how much the waiting of two ranks that are alike may differ, 0 to 1."""
    share = median(one.waiting for one in every)
    return sqrt(2) * live_cost.noise(share, min(one.seen.samples for one in every))


def _of_all(every: Sequence[LiveRankState]) -> float:
    """The largest share of the time, 0 to 1, of one activity outside the model on all ranks."""
    names = {met.name for one in every for met in one.seen.activities}
    beside = names - {*FOR_OTHERS, *IN_MODEL, IN_ENGINE}
    return max((min(one.seen.share(name) for one in every) for name in beside), default=0.0)


def _begin(
    others: Sequence[LiveRankState], late: LiveRankState, activity: str, own: Sequence[Frame]
) -> Frame | None:
    """The first of these frames that the others never reach; None: there is none.

    In the model, all must also have been sampled at one line that calls it: else a rank whose model
    is slow would look the same.
    """

    if activity in IN_MODEL and not _all_call(others, late, activity):
        return None
    reached = _reached(others)
    return next((frame for frame in own if frame not in reached), None)


def _all_call(others: Sequence[LiveRankState], late: LiveRankState, activity: str) -> bool:
    """Whether all ranks were sampled at one line that leads into this activity."""

    def calling(one: LiveRankState) -> set[Frame]:
        met = (row for row in one.seen.activities if row.name == activity and row.entered)
        return {row.calls[row.entered - 1] for row in met}

    return bool(calling(late).intersection(*map(calling, others)))


def _reached(ranks: Sequence[LiveRankState]) -> set[Frame]:
    return {frame for one in ranks for row in one.seen.activities for frame in row.calls}


def _own(
    others: Sequence[LiveRankState], late: LiveRankState, calls: Sequence[Frame]
) -> Sequence[Frame]:
    """The frames at which the straggler has left the path of the others."""

    def share(one: LiveRankState, frame: Frame) -> float:
        return one.share(lambda row: frame in row.calls)

    usual = {frame: median(share(one, frame) for one in others) for frame in calls}
    # Deeper frames may be in functions that all ranks call.
    least = min(usual.values(), default=0.0) + NEVER
    return [
        frame
        for frame in calls
        if usual[frame] <= least and OWN_LINE * usual[frame] <= share(late, frame)
    ]


def _beyond(
    others: Sequence[LiveRankState], late: LiveRankState, activity: str
) -> tuple[tuple[Frame, ...], int]:
    """The frames where the straggler spends more of the time in this activity than the others.

    And how many of them lead into the activity.
    """

    def share(one: LiveRankState, calls: tuple[Frame, ...]) -> float:
        return one.share(lambda row: (row.name, row.calls) == (activity, calls))

    more = {
        (row.calls, row.entered): share(late, row.calls)
        - median(share(one, row.calls) for one in others)
        for row in late.seen.activities
        if row.name == activity
    }
    return max(more, key=lambda way: more[way], default=((), 0))


def longer_limit() -> Fix:
    """The fix that raises the timeout of the process group."""
    return Fix.python(
        summary="raise the timeout of the process group",
        paste=(
            "from datetime import timedelta\n\ndist.init_process_group(timeout=timedelta(hours=2))"
        ),
        caution="a dead rank is then noticed only after that time, too",
    )


def save_asynchronously(expected_gain: str | None = None) -> Fix:
    """The fix that stops the training only for the copy of a checkpoint to the host."""
    return Fix.python(
        summary="save asynchronously on all ranks; only the copy to the host stops the training",
        paste=(
            "import torch.distributed.checkpoint as dcp\n"
            "\n"
            "saved = None\n"
            "# in the loop, on every rank, at the steps that save now:\n"
            "if saved is not None:\n"
            "    saved.result()\n"
            'state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
            'saved = dcp.async_save(state, checkpoint_id=f"checkpoints/{step}")'
        ),
        caution=(
            'needs a process group for the CPU: init_process_group("cpu:gloo,cuda:nccl"); holds '
            "the state in memory twice"
        ),
        expected_gain=expected_gain,
    )
