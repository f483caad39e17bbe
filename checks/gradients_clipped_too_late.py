"""Gradients are clipped where it changes nothing: after the optimizer's step, or before backward.

Clipping has an effect only on the gradients of the backward pass before it, and only until the
optimizer takes them. After ``optimizer.step()`` the next ``zero_grad()`` removes what was clipped;
before ``backward()`` there is nothing to clip.

Symptoms: no error; a large batch or a bad sample makes the loss jump, although clipping is on.

To fix it, clip between ``backward()`` and ``step()``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.clipped_too_late[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(one)} is not between the backward pass and the step of the optimizer "
            "that takes its gradients: it changes nothing",
            fixes=(
                Fix.python(
                    summary="clip between both",
                    paste="loss.backward()\n"
                    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                    "optimizer.step()\n"
                    "optimizer.zero_grad()",
                ),
            ),
        )
