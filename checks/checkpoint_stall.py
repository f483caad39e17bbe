"""Saving checkpoints stops the training for a notable share of the time.

While ranks save a checkpoint, no rank computes. The state is copied to the host, serialised,
written, and often flushed to the disk at once. Only some steps save, so the median step hides the
cost and the mean does not. Asynchronous saving stops the training only for the copy to the host.

Symptoms: at regular steps, one takes seconds; the disk is busy while the GPUs are idle.

To fix it, save asynchronously on all ranks, or save less often.
"""

# Above 150 lines: recorded steps and a live run, and two fixes with their cost.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import fmean

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import AGAIN, named, way_there
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stragglers import ENOUGH_STEPS, SLOWER_BY, recurs, saving
from ddoctor.evidence.steps import Lines, RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# Share of the samples of an attach: far above what a few samples at a bad moment amount to.
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
            f"{_who(savers, everybody)} saved a checkpoint in {len(events)} of {steps.count} "
            f"steps, {fmean(events):.3g} s each time{_at(lines, savers[0])}: the training is "
            f"stopped for {share:.0%} of all the time"
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
    at = endings.at(calls[-1]) if calls else ""
    again = visits >= AGAIN
    yield Finding(
        severity=Severity.WARNING if again else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{named(savers)} saved a checkpoint{at} for {share:.0%} of {most.seconds:.0f} s, "
            + (f"{visits} times" if again else "too rarely to say how often this happens")
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
    return endings.ranks(rank.place.rank for rank in savers)


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
        summary=f"save every {interval} steps, which costs {AFFORDABLE:.0%} of the time",
        paste=(
            f'training_arguments = TrainingArguments(..., save_strategy="steps", '
            f"save_steps={interval})"
            if hugging_face
            else f"if step % {interval} == 0:\n    save(step)"
        ),
        language="python",
        caution=f"a failure then loses up to {interval * sound:.0f} s of work",
        expected_gain=f"{share - AFFORDABLE:.0%} of the time",
    )


def _asynchronously(share: float) -> Fix:
    return Fix(
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
        language="python",
        caution=(
            'needs a process group for the CPU: init_process_group("cpu:gloo,cuda:nccl"); holds '
            "the state in memory twice"
        ),
        expected_gain=f"up to {share:.0%} of the time",
    )
