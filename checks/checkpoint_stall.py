"""Saving checkpoints stops the training for a notable share of the time.

While ranks save a checkpoint, no rank computes. The state is copied to the host, serialised,
written, and often flushed to the disk at once. Only some steps save, so the median step hides the
cost and the mean does not. Asynchronous saving stops the training only for the copy to the host.

Symptoms: at regular steps, one takes seconds; the disk is busy while the GPUs are idle.

To fix it, save asynchronously on all ranks, or save less often.
"""

# Above 150 lines: a recorded run, a live one and the table of a profiler.

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from statistics import fmean

from ddoctor.analysis import endings, live_cost, printed_times
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.live_ranks import AGAIN, named, shares, way_there
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import save_asynchronously
from ddoctor.analysis.stragglers import ENOUGH_STEPS, SLOWER_BY, most_affected, recurs, saving
from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# Share of the samples of an attach; one save at a bad moment amounts to as much, several do not.
NOTABLE, REPEATED = 0.1, 0.06

# Fewer saves may be those of a run that was cut short.
FEWEST_SAVES = 3

# Training at ByteDance pays less than 0.9 % for a checkpoint of every step (ByteRobust, SOSP'25).
AFFORDABLE = 0.01


def saving_stops_the_steps(
    steps: Steps, lines: Lines | None, words: FrameworkWords
) -> Iterator[Finding]:
    if steps.count < ENOUGH_STEPS:
        return
    rows = tuple(map(saving, steps.ranks))
    longest = [max(step) for step in zip(*rows, strict=True)]
    if not recurs(longest, SLOWER_BY * steps.step):
        return
    savers = most_affected(steps, rows)
    events = [second for second in longest if second]
    share = fmean(longest) / steps.step
    met = lines.of(savers[0].rank, "checkpoint") if lines is not None else ()
    at = f", at {met[0].file}:{met[0].line}, `{met[0].text}`" if met else ""
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"{endings.ranks((one.rank for one in savers), every=steps.ranks)} saved a checkpoint "
            f"in {len(events)} of {steps.count} steps, {fmean(events):.3g} s each time{at}: the "
            f"training is stopped for {share:.0%} of all the time"
        ),
        evidence=(
            Observation(name="time to save a checkpoint", value=round(fmean(events), 3), unit="s"),
            Observation(
                name="share of the time",
                value=round(100 * share, 1),
                unit="%",
                expected=100 * AFFORDABLE,
                source="ByteRobust (SOSP'25): less than 0.9 %",
            ),
        ),
        where=Where.of(savers, every=steps.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            save_asynchronously(f"up to {share:.0%} of the time"),
            _less_often(steps, fmean(events), share, words),
        ),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.moves:
        return
    stopped = {
        rank: share
        for rank in live.ranks
        if (share := rank.seen.share("checkpoint"))
        >= (REPEATED if rank.seen.visits("checkpoint") >= AGAIN else NOTABLE)
    }
    if not stopped:
        return
    savers, most = list(stopped), max(stopped, key=lambda rank: stopped[rank])
    share, visits = stopped[most], most.seen.visits("checkpoint")
    calls = most.seen.calls("checkpoint")
    at = endings.at(calls[-1]) if calls else ""
    again = visits >= AGAIN
    yield Finding(
        severity=Severity.WARNING if again else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{named(savers)} saved a checkpoint{at} for {share:.0%} of {most.seconds:.0f} s, "
            + (f"{visits} times" if again else "too rarely to say how often this happens")
        ),
        evidence=shares("saving", stopped),
        where=Where.of(savers, every=live.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            save_asynchronously(f"up to {share:.0%} of the time"),
            *(way_there(most, calls) if calls else ()),
        ),
    )


def in_printed_times(times: PrintedTimes) -> Iterator[Finding]:
    """By the table of Lightning's profiler."""
    table = printed_times.largest(times, "checkpoint", live_cost.SURE, printed_times.BATCHES)
    if table is None or table.checkpoint is None:
        return
    if table.saves is not None and table.saves < FEWEST_SAVES:
        return
    share = table.checkpoint / table.whole
    often = f"; {table.saves} checkpoints were saved" if table.saves is not None else ""
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY if often else Confidence.POSSIBLE,
        because=f"{printed_times.whence(table)}: the training is stopped to save checkpoints for "
        f"{printed_times.part(table, table.checkpoint)}{often}",
        evidence=(printed_times.row(table, "saving checkpoints", share, live_cost.SURE),),
        where=Where(ranks=table.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="save less often, or in the background",
                paste="ModelCheckpoint(..., every_n_train_steps=1000)\n"
                "# in the background: Trainer(plugins=[AsyncCheckpointIO()])",
                caution="a failure loses the work since the last checkpoint",
                expected_gain=f"up to {share:.0%} of the time",
            ),
        ),
    )


def _less_often(steps: Steps, seconds: float, share: float, words: FrameworkWords) -> Fix:
    sound = steps.step * (1 - share)
    interval = ceil(seconds / (AFFORDABLE * sound))
    return Fix.python(
        summary=f"save every {interval} steps, which costs {AFFORDABLE:.0%} of the time",
        paste=words.written(
            "save_every",
            interval,
            f"if step % {interval} == 0:\n    save(step)",
        ),
        caution=f"a failure then loses up to {interval * sound:.0f} s of work",
        expected_gain=f"{share - AFFORDABLE:.0%} of the time",
    )
