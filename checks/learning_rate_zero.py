"""The learning rate of every optimizer is zero, so no step changes the weights any more.

A scheduler counts its steps in its own unit. One that is made for epochs, and is stepped after each
batch, is through after as many batches. One that every rank steps for all ranks is through after a
part of the training. All later steps cost as much as before, and the model no longer learns.

Symptoms: the loss stays where it is from some step on; a logged learning rate shows 0.

To fix it, tell the scheduler how often it will be stepped.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# A warm-up begins with zero, and the last steps of a whole run may have it, too.
FEWEST_STEPS, OF_THE_STEPS = 20, 0.2


def found(use: RankUse, steps: Steps) -> Iterator[Finding]:
    zero = min((one.zero_steps for one in use.flags), default=0)
    if zero < max(FEWEST_STEPS, OF_THE_STEPS * steps.count):
        return
    always = zero >= steps.count
    which = f"the first {zero} steps" if always else f"the last {zero} steps"
    yield Finding(
        # A warm-up that counts epochs has it in its first epoch alone.
        severity=Severity.WARNING if always else Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=f"every learning rate was 0 in {which}, on all ranks",
        evidence=(
            Observation(
                name="steps with a learning rate of 0",
                value=zero,
                expected=0,
                source="param_groups of all optimizers",
            ),
        ),
        fixes=_AT_THE_BEGINNING if always else _AT_THE_END,
    )


_AT_THE_BEGINNING = (
    Fix.python(
        summary="begin the warm-up above zero",
        paste="scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up))",
    ),
)
_AT_THE_END = (
    Fix.python(
        summary="count the scheduler's steps as it is stepped, here after each batch",
        paste=(
            "steps = epochs * len(loader)  # not the number of epochs\n"
            "scheduler = torch.optim.lr_scheduler.LinearLR(\n"
            "    optimizer, 1.0, 0.01, total_iters=steps\n"
            ")"
        ),
    ),
    Fix.python(
        summary="or step it once in each epoch",
        paste="for epoch in range(epochs):\n    ...\n    scheduler.step()",
    ),
)
