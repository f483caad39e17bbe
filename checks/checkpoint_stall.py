"""Saving checkpoints stops the training for a notable part of the time.

While rank 0 writes, or all ranks do, nobody computes: the state is copied to the host, serialised,
written, and often brought to the disk at once. It comes every so many steps, so a median hides it
and the mean does not. Asynchronous saving stops the training for the copy alone.

Seen from outside: at regular steps one takes seconds; the disk is busy while the GPUs are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import fmean

from ddoctor.analysis.endings import place
from ddoctor.analysis.live_ranks import AGAIN, named, way_there
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stragglers import ENOUGH_STEPS, SLOWER_BY, recurs, saving
from ddoctor.evidence.steps import Lines, RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# Of the time of a look from outside: far from what a sample at the wrong moment makes of it.
NOTABLE = 0.1

# Training at ByteDance pays less than 0.9 % for a checkpoint of every step (ByteRobust, SOSP'25).
AFFORDABLE = 0.01


def saving_stops_the_steps(
    steps: Steps, lines: Lines | None, run: TrainingRun | None
) -> Iterator[Finding]:
    if steps.count < ENOUGH_STEPS:
        return
    rows = [saving(rank, steps.count) for rank in steps.ranks]
    longest = [max(step) for step in zip(*rows, strict=True)]
    if not recurs(longest, SLOWER_BY * steps.step):
        return
    most = max(map(sum, rows))
    savers = [rank for rank, row in zip(steps.ranks, rows, strict=True) if sum(row) >= most / 2]
    events = [second for second in longest if second]
    share = fmean(longest) / steps.step
    everybody = len(savers) == len(steps.ranks)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"{_who(savers, everybody)} saved in {len(events)} of {steps.count} steps, "
            f"{fmean(events):.3g} s each time{_at(lines, savers[0])}: {share:.0%} of all the time, "
            f"in which the training stands still"
        ),
        evidence=(
            Observation(name="time of a checkpoint", value=round(fmean(events), 3), unit="s"),
            Observation(
                name="part of the time",
                value=round(100 * share, 1),
                unit="%",
                expected=100 * AFFORDABLE,
                source="ByteRobust (SOSP'25): less than 0.9 %",
            ),
        ),
        where=Where.of([rank.place for rank in savers], every=steps.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=tuple(_fixes(steps, events, share, run)),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.moves:
        return
    savers = [rank for rank in live.ranks if rank.seen.share("checkpoint") >= NOTABLE]
    if not savers:
        return
    most = max(savers, key=lambda rank: rank.seen.share("checkpoint"))
    share, visits = most.seen.share("checkpoint"), most.seen.visits("checkpoint")
    calls = most.seen.calls("checkpoint")
    at = f" at {place(calls[-1])}" if calls else ""
    again = visits >= AGAIN
    yield Finding(
        severity=Severity.WARNING if again else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{named(savers)} saved{at} in {share:.0%} of {most.seconds:.0f} s, "
            + (f"{visits} times" if again else "too seldom to tell how often it comes")
        ),
        evidence=tuple(
            Observation(
                name=f"saving, rank {rank.rank}",
                value=round(100 * rank.seen.share("checkpoint")),
                unit="% of time",
            )
            for rank in savers
        ),
        where=Where.of(savers, every=live.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_asynchronously(share), *(way_there(most, calls) if calls else ())),
    )


def _who(savers: Sequence[RankSteps], everybody: bool) -> str:
    if everybody and len(savers) > 1:
        return "all ranks"
    return " and ".join(f"rank {rank.place.rank}" for rank in savers)


def _at(lines: Lines | None, saver: RankSteps) -> str:
    met = lines.of(saver.place.rank, "checkpoint") if lines is not None else ()
    return f", at {met[0].file}:{met[0].line}, `{met[0].text}`" if met else ""


def _fixes(
    steps: Steps, events: Sequence[float], share: float, run: TrainingRun | None
) -> Iterator[Fix]:
    yield _asynchronously(share)
    sound = steps.step * (1 - share)
    interval = ceil(fmean(events) / (AFFORDABLE * sound))
    hugging_face = run is not None and run.framework == "transformers"
    yield Fix(
        summary=f"save every {interval} steps: then it costs {AFFORDABLE:.0%}",
        paste=(
            f'training_arguments = TrainingArguments(..., save_strategy="steps", '
            f"save_steps={interval})"
            if hugging_face
            else f"if step % {interval} == 0:\n    save(step)"
        ),
        language="python",
        caution=f"a failure then costs up to {interval * sound:.0f} s of work",
        expected_gain=f"{share - AFFORDABLE:.0%} of the time",
    )


def _asynchronously(share: float) -> Fix:
    return Fix(
        summary="save asynchronously, on all ranks: only the copy to the host stops the training",
        paste=(
            "import torch.distributed.checkpoint as dcp\n"
            "\n"
            "saved = None\n"
            "# in the loop, on every rank, at the steps at which it was saved so far:\n"
            "if saved is not None:\n"
            "    saved.result()\n"
            'state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
            'saved = dcp.async_save(state, checkpoint_id=f"checkpoints/{step}")'
        ),
        language="python",
        caution=(
            'needs a process group for the CPU: init_process_group("cpu:gloo,cuda:nccl"); the '
            "state is held in memory twice"
        ),
        expected_gain=f"up to {share:.0%} of the time",
    )
