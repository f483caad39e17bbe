"""Large shares of the time of a run that no finding covers: it is not plainly healthy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import fmean

from ddoctor.analysis import endings, live_cost, live_time, loop_lines, pace
from ddoctor.analysis.describe import figure
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import IN_MODEL
from ddoctor.analysis.stragglers import ENOUGH_TRACED, ENOUGH_TRACED_SECONDS, enough
from ddoctor.analysis.work_imbalance import COMPUTING
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.printed_pace import PrintedPace
from ddoctor.evidence.steps import BETWEEN_RANKS, HotLine, Lines, Steps
from ddoctor.evidence.trace import Traces
from ddoctor.models import Finding

NOTABLE = live_cost.SURE
"""The share of the step from which on a cost is a warning, once its cause is known."""
# A finding covers a share if it explains most of it.
COVERED = 0.5
# `transfer` is the network's; `waiting` has its reason in the work of another rank.
OUTSIDE_THE_MODEL = (
    ("loader", "to-device"),
    ("transfer",),
    ("checkpoint",),
    ("evaluation",),
    ("gc",),
    ("rest",),
)
BEGUN = ("checkpoint", "evaluation")
"""Phases whose lines are mostly within functions that the training also calls."""
UNNAMED = {"rest": "the training loop outside the model", "transfer": "the transfer of tensors"}


def in_steps(steps: Steps, lines: Lines | None, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a sentence for each large share of recorded steps that no finding covers.

    Each part is that of the rank with the most of it. The ranks that wait for it have less.
    """
    if not enough(steps) or not steps.step:
        return
    for phases in OUTSIDE_THE_MODEL:
        most = max(steps.ranks, key=lambda rank: rank.share(*phases))
        met = lines.of(most.place.rank, *phases) if lines is not None else ()
        share = most.share(*phases)
        if phases == ("rest",) and met:
            models = loop_lines.of_models(met)
            own = [one.samples for one in met if (one.file, one.line) not in models]
            share *= sum(own) / sum(one.samples for one in met)
        if _uncovered(share, findings):
            at = f", often at {_line(met)}" if met else ""
            yield f"{_named(phases[0])} takes {share:.0%} of the step on rank {most.place.rank}{at}"
    computing = [rank.share(*COMPUTING) for rank in steps.ranks]
    longer = max(computing) - fmean(computing)
    if _uncovered(longer, findings):
        rank = steps.ranks[computing.index(max(computing))].place.rank
        yield f"rank {rank} computes for {longer:.0%} of the step longer than the mean rank"


def in_traces(traces: Traces, steps: Steps | None) -> str:
    """Why traces do not show that a run is well; empty: they do."""
    if steps is not None and steps.count >= ENOUGH_TRACED and not enough(steps):
        needed = ceil(ENOUGH_TRACED_SECONDS / steps.step)
        return (
            f"the traces hold {steps.count} steps of {1000 * steps.step:.3g} ms on CPUs, where "
            f"other processes may slow a rank for longer: profile at least {needed} steps"
        )
    if steps is None or not enough(steps):
        held = f"{traces.steps or 'no'} whole step{'' if traces.steps == 1 else 's'}"
        what = "the trace holds" if len(traces.files) == 1 else "all traces hold the same"
        return (
            f"{what} {held}, and {ENOUGH_TRACED} are needed to judge: "
            "profile with schedule(wait=1, warmup=2, active=10)"
        )
    waiting = max(steps.ranks, key=lambda rank: rank.share(*BETWEEN_RANKS))
    share = waiting.share(*BETWEEN_RANKS)
    if steps.complete or share < NOTABLE:
        return ""
    return (
        f"rank {waiting.place.rank} is in collectives for {share:.0%} of the step: only the traces "
        f"of all {traces.world} ranks show for whom it waits"
    )


def _line(met: Sequence[HotLine]) -> str:
    """The line with the most samples; of an evaluation or a checkpoint the call that begins it."""
    counts: dict[str, int] = {}
    for one in met:
        begin: Frame | HotLine = one.calls[-1] if one.calls and one.phase in BEGUN else one
        place = f"{begin.file}:{begin.line}, `{begin.text}`"
        counts[place] = counts.get(place, 0) + one.samples
    return max(counts, key=lambda place: counts[place])


def in_a_live_run(live: LiveState, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a sentence for each large share of a live run's time that no finding covers."""
    for row in live_time.spent(live):
        if row.phase not in IN_MODEL and _uncovered(row.share, findings):
            who = endings.ranks((one.rank for one in row.ranks), every=live.ranks)
            at = endings.at(row.line) + endings.quoted(row.line)
            yield f"{_named(row.phase)} takes {row.share:.0%} of the time of {who}{at}"


def in_printed_pace(printed: PrintedPace) -> Iterator[str]:
    """Yield a sentence for the lines of a log from which on its steps take longer for good."""
    found = [*pace.slowdowns(printed)]
    if not found:
        return
    one = max(found, key=lambda one: one.factor)
    who = f" of rank {one.series.rank}" if one.series.rank is not None else ""
    yield (
        f"from {one.place} on, a step{who} takes {one.factor:.2g} times as long: "
        f"'{one.series.figure}' is {figure(one.after)} in the median, and was "
        f"{figure(one.before)}; the log does not say why, which may be the data as well as the "
        "machine"
    )


def _named(phase: str) -> str:
    return UNNAMED.get(phase, phase)


def _uncovered(share: float, findings: Sequence[Finding]) -> bool:
    if share < NOTABLE:
        return False
    costs = (one.cost for one in findings if one.cost is not None)
    return not any(cost.unit == "share of step" and cost.value >= COVERED * share for cost in costs)
