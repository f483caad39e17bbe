"""DDP broadcasts the buffers of the model in every step, although nothing needs it.

Before each forward pass DDP broadcasts all buffers from rank 0: batch-norm statistics, masks,
tables. This is an additional collective of all ranks that no computation overlaps. Training does
not use the statistics, since batch norm normalises with the current batch. Constants never change,
and rank 0 saves the same values either way.

Symptoms: a profiler trace shows many small broadcasts at the beginning of each step.

To fix it, set ``broadcast_buffers=False`` in DDP.
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

# It is on by default, so a smaller cost is not worth a note.
NOTE_SHARE = 0.02
# Half of the 10 % from which published detectors report a slowdown: this is not a comparison of
# noisy steps but the time of the broadcast itself, and the fix saves all of it.
WARNING_SHARE = 0.05
# A slowdown must persist for this many steps.
ENOUGH_STEPS = 10

MIB = 2**20


def costly(wrapping: Wrapping, steps: Steps, run: TrainingRun | None) -> Iterator[Finding]:
    sending = [one for one in wrapping.wrappers if one.broadcast_buffers and one.buffers]
    for name in dict.fromkeys(one.name for one in sending):
        models = [one for one in sending if one.name == name]
        # The rank that arrives last does not wait: its time is the broadcast alone.
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
    kinds = f", including {model.batch_norms} batch norms" if model.batch_norms else ""
    if statistics:
        caution = (
            "each rank then keeps separate running statistics, used in evaluation only; those of "
            "rank 0, which are saved, do not change; SyncBatchNorm makes them equal"
        )
    elif model.batch_norms:
        caution = "SyncBatchNorm already keeps its statistics equal on all ranks"
    else:
        caution = "buffers that the script changes in training then differ between ranks"
    return Finding(
        severity=Severity.WARNING if share >= WARNING_SHARE else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"DDP broadcasts {model.buffers} buffers of {model.name} "
            f"({model.buffer_bytes / MIB:.2g} MiB{kinds}) before each forward pass, which takes "
            f"{1e3 * seconds:.2f} ms, {share:.1%} of the step"
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
            Fix(
                summary="set broadcast_buffers=False",
                paste=written("broadcast_buffers", False, run),
                language="python",
                caution=caution,
                expected_gain=f"{share:.1%} of the step",
                settings=("ddp.broadcast_buffers=false",),
            ),
        ),
    )
