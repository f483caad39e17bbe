"""DDP broadcasts the buffers of the model in every step, although nothing needs it.

Before each forward pass DDP broadcasts all buffers from rank 0: batch-norm statistics, masks,
tables. This is an additional collective of all ranks that no computation overlaps. Training does
not use the statistics, since batch norm normalises with the current batch. Constants never change,
and rank 0 saves the same values either way.

Symptoms: a profiler trace shows many small broadcasts at the beginning of each step.

To fix it, set ``broadcast_buffers=False`` in DDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddoctor.analysis import live_collectives, live_cost
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.live_ranks import FOR_OTHERS, IN_ENGINE, shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loop_work import BACKWARD, FORWARD, HOOKS
from ddoctor.analysis.stragglers import ENOUGH_STEPS
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low")

# It is on by default, so a smaller cost is not worth a note.
NOTE_SHARE = 0.02
# What counts as a slowdown (docs/decisions.md): below it, control runs show no clear gain.
WARNING_SHARE = 0.1
# At the end of the backward pass, DDP has all ranks meet.
OF_PASSES = (FORWARD, BACKWARD, HOOKS, IN_ENGINE, *FOR_OTHERS)


def costly(wrapping: Wrapping, steps: Steps, words: FrameworkWords) -> Iterator[Finding]:
    for models in wrapping.by_name(lambda one: one.broadcast_buffers and one.buffers):
        # The rank that arrives last does not wait: its time is the broadcast alone.
        times = (one.buffer_broadcast_seconds for one in models)
        each = list(map(min, zip(*times, strict=False)))
        if len(models) < 2 or len(each) < ENOUGH_STEPS or not steps.step:
            continue
        model, seconds = models[0], median(each)
        share = seconds / steps.step
        if share < NOTE_SHARE:
            continue
        kinds = f", including {model.batch_norms} batch norms" if model.batch_norms else ""
        if model.largest_buffer and not model.batch_norms:
            kinds = f", the largest one is {model.largest_buffer.removeprefix('module.')}"
        if model.batch_norms > model.sync_batch_norms:
            caution = (
                "each rank then keeps separate running statistics, used in evaluation only; those "
                "of rank 0, which are saved, do not change; SyncBatchNorm makes them equal"
            )
        elif model.batch_norms:
            caution = "SyncBatchNorm already keeps its statistics equal on all ranks"
        else:
            caution = "buffers that the script changes in training then differ between ranks"
        yield Finding(
            severity=Severity.WARNING if share >= WARNING_SHARE else Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=(
                f"DDP broadcasts {model.buffers} buffer{'s' * (model.buffers > 1)} of {model.name} "
                f"({model.buffer_bytes / MIB:.2g} MiB{kinds}) before each forward pass, which "
                f"takes {1e3 * seconds:.2f} ms, {share:.1%} of the step"
            ),
            evidence=(
                Observation(
                    name="broadcast of buffers",
                    value=round(1e3 * seconds, 3),
                    unit="ms/step",
                    expected=0,
                    source="on the rank that arrived last, median of steps",
                ),
            ),
            cost=Cost(value=round(share, 4), unit="share of step"),
            fixes=(
                Fix.python(
                    summary="set broadcast_buffers=False",
                    paste=words.of_ddp("broadcast_buffers", False),
                    caution=caution,
                    expected_gain=f"{share:.1%} of the step",
                    settings=("ddp.broadcast_buffers=false",),
                ),
            ),
        )


def in_a_live_run(live: LiveState, words: FrameworkWords) -> Iterator[Finding]:
    """By the samples in DDP's broadcast."""
    found = live_collectives.of_buffers(live)
    if found is None:
        return
    share = found.share
    # Ranks also wait there for those that come late from what they do between two passes.
    between = max(one.share(lambda row: row.name not in OF_PASSES) for one in live.ranks)
    if not live.together and between > share / 2:
        return
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"all {len(live.ranks)} ranks spend {share:.0%} of the time in DDP's broadcast of "
            "buffers, before each forward pass"
        ),
        evidence=shares("in the broadcast of buffers", found.shares),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(
            Fix.python(
                summary="set broadcast_buffers=False",
                paste=words.of(live.framework).of_ddp("broadcast_buffers", False),
                caution=(
                    "running statistics of batch norms, and buffers that the script changes in "
                    "training, then differ between ranks"
                ),
                expected_gain=f"up to {share:.0%} of the step",
            ),
        ),
    )
