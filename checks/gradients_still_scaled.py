"""Gradients are clipped or applied while the GradScaler's factor is still in them.

With float16 a GradScaler multiplies the loss by a factor such as 65,536, so that small gradients do
not become zero. All gradients have this factor until ``scaler.unscale_`` or ``scaler.step`` divides
them by it. Clipped before, their norm is far above any usual limit: each step becomes tiny, however
small the true gradients are. Applied as they are, infinite gradients reach the weights, too.

Symptoms: no error; the loss falls much more slowly, or is not a number after some steps.

To fix it, call ``scaler.unscale_(optimizer)`` before the clipping, and ``scaler.step(optimizer)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("weights-not-finite",)


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.scaled_gradients[:1]:
        does = "applies" if one.applies else "clips"
        lacks = (
            "no line leaves the step to the scaler"
            if one.applies
            else "no line calls the scaler's unscale_ before"
        )
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.at)} {does} the gradients of the loss that {shown(one.scale)} "
                f"multiplies, and {lacks}"
            ),
            fixes=(
                Fix.python(
                    summary="divide the gradients by the factor first, let the scaler do the step",
                    paste=(
                        "scaler.scale(loss).backward()\n"
                        "scaler.unscale_(optimizer)\n"
                        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                        "scaler.step(optimizer)  # leaves out steps with infinite gradients\n"
                        "scaler.update()"
                    ),
                ),
                Fix.python(
                    summary="or use bfloat16, which needs no scaler",
                    paste='with torch.autocast("cuda", dtype=torch.bfloat16):\n'
                    "    loss = criterion(model(inputs), targets)\n"
                    "loss.backward()",
                    caution="GPUs before Ampere compute bfloat16 slowly",
                ),
            ),
        )
