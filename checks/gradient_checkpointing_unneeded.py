"""Activations are computed again although there is memory to keep them.

With gradient checkpointing each block runs its forward pass twice: eight units of arithmetic for a
step in place of six. That buys memory. Where memory is there anyway, it buys nothing; where some is
there, fewer blocks need it.

Seen from outside: much of the GPU's memory is free, while ``gradient_checkpointing`` is on.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.plan import Plan
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

GIB = 2**30
# Six units of arithmetic where there were eight: Korthikanti et al., arXiv 2205.05198, section 5.
SAVED = 1 / 4


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    row = plan.rows[plan.chosen] if plan.chosen is not None else None
    kept = plan.without_checkpointing
    if row is None or kept is None or plan.doubt * kept.total > plan.device_memory:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{row.title} needs {kept.total / GIB:.1f} GiB without gradient checkpointing, and "
            f"{row.parts.total / GIB:.1f} with it; {plan.device} has "
            f"{plan.device_memory / GIB:.1f}"
        ),
        evidence=(
            Observation(
                name="left without it",
                value=round((plan.device_memory - kept.total) / GIB, 1),
                unit="GiB",
                source=plan.way,
            ),
        ),
        cost=Cost(value=SAVED, unit="share of step"),
        fixes=(
            Fix(
                summary="keep the activations",
                paste="TrainingArguments(..., gradient_checkpointing=False)",
                language="python",
                expected_gain=f"up to {SAVED:.0%} of the arithmetic of a step",
            ),
        ),
    )
