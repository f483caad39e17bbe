"""The training computes in float16, and no GradScaler scales its loss.

float16 has no numbers below 6e-8, and few digits below 6e-5. Gradients are often that small: they
become zero, and the parameters behind them learn nothing. A GradScaler multiplies the loss by a
large factor, and divides the gradients by it before the step. bfloat16 needs none.

Symptoms: no error; the loss falls more slowly than in float32, or stays where it is.

To fix it, use bfloat16, or a GradScaler around the backward pass and the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import is_plain, shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity


def weights_of_float16(script: Script) -> Iterator[Finding]:
    """The model itself is float16, and so is what the optimizer adds to it."""
    for line in script.half_models[:1] if is_plain(script) else ():
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            title="The weights that the optimizer changes are float16",
            because=(
                f"{shown(line)} makes the weights float16, which has 11 bits: what a step adds is "
                "lost where it is below a two-thousandth of the weight"
            ),
            fixes=(
                Fix.python(
                    summary="leave the weights float32, and compute in 16 bits by autocast",
                    paste='with torch.autocast("cuda", dtype=torch.bfloat16):\n'
                    "    loss = criterion(model(inputs), targets)\n"
                    "loss.backward()",
                ),
            ),
        )


def in_the_source(script: Script) -> Iterator[Finding]:
    line = script.unscaled_float16
    if line is None or not is_plain(script):
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(line)} lets the training compute in float16, and no line scales the loss: "
            "small gradients become zero"
        ),
        fixes=(
            Fix.python(
                summary="compute in bfloat16, which needs no scaler",
                paste='with torch.autocast("cuda", dtype=torch.bfloat16):\n'
                "    loss = criterion(model(inputs), targets)\n"
                "loss.backward()",
                caution="GPUs before Ampere compute bfloat16 slowly",
            ),
            Fix.python(
                summary="or scale the loss",
                paste=(
                    'scaler = torch.amp.GradScaler("cuda")\n'
                    "scaler.scale(loss).backward()\n"
                    "scaler.step(optimizer)\n"
                    "scaler.update()"
                ),
            ),
        ),
    )
