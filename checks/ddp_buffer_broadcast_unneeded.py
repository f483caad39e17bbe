"""DDP sends the buffers of the model to all ranks in every step, and nothing needs that.

Before each forward DDP broadcasts all buffers from rank 0: the running statistics of batch norm,
masks, tables. It is a meeting of all ranks of its own, at a time when nothing hides it. Statistics
are not used in training at all (a batch is normed by its own), constants never change, and what
rank 0 saves is the same either way.

Seen from outside: many small broadcasts at the begin of each step in a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ddoctor.analysis.ddp_options import written
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low")

# It is on by default, so a price that nobody would notice is not worth a word.
NOTE_SHARE = 0.02
# Half of the 10 % from which published detectors report a slowdown: this is no comparison of noisy
# steps but the time of the broadcast itself, all of which is saved.
WARNING_SHARE = 0.05
# Slowness persists: fewer steps than this do not show it.
ENOUGH_STEPS = 10

MIB = 2**20


def costly(wrapping: Wrapping, steps: Steps, run: TrainingRun | None) -> Iterator[Finding]:
    sending = [one for one in wrapping.wrappers if one.broadcast_buffers and one.buffers]
    for name in dict.fromkeys(one.name for one in sending):
        models = [one for one in sending if one.name == name]
        # The rank that comes last waits for nobody; what the others take longer is its lateness.
        each = [
            min(step)
            for step in zip(*(one.buffer_broadcast_seconds for one in models), strict=False)
        ]
        if len(models) < 2 or len(each) < ENOUGH_STEPS or not steps.step:
            continue
        seconds = median(each)
        if seconds >= NOTE_SHARE * steps.step:
            yield _finding(models, seconds, seconds / steps.step, run)


def _finding(
    models: Sequence[Wrapper], seconds: float, share: float, run: TrainingRun | None
) -> Finding:
    model = models[0]
    statistics = model.batch_norms > model.sync_batch_norms
    kinds = f", of {model.batch_norms} batch norms among others" if model.batch_norms else ""
    if statistics:
        caution = (
            "each rank then keeps running statistics of its own: they matter in evaluation only, "
            "and rank 0's, which are saved, stay as they are now; SyncBatchNorm makes them equal"
        )
    elif model.batch_norms:
        caution = "SyncBatchNorm keeps its statistics equal on all ranks by itself"
    else:
        caution = "buffers that the script itself changes in training then differ between ranks"
    return Finding(
        severity=Severity.WARNING if share >= WARNING_SHARE else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"DDP broadcasts {model.buffers} buffers of {model.name} "
            f"({model.buffer_bytes / MIB:.2g} MiB{kinds}) before each forward, which takes "
            f"{1e3 * seconds:.2f} ms, {share:.1%} of the step"
        ),
        evidence=(
            Observation(
                name="broadcast of buffers",
                value=round(1e3 * seconds, 3),
                unit="ms/step",
                expected=0,
                source="on the rank that came last, median of steps",
            ),
        ),
        cost=Cost(value=round(share, 4), unit="share of step"),
        fixes=(
            Fix(
                summary="leave the buffers where they are",
                paste=written("broadcast_buffers", False, run),
                language="python",
                caution=caution,
                expected_gain=f"{share:.1%} of the step",
                settings=("ddp.broadcast_buffers=false",),
            ),
        ),
    )
