"""An evaluation computes its passes as if gradients followed, because no_grad is missing.

``model.eval()`` changes what dropout and normalization do, and nothing else: each pass still keeps
all activations for a backward pass. This takes the memory of a training step, and some time. A
result that is added up or stored unchanged keeps the activations of its batch until the end.

Symptoms: the evaluation needs as much memory as training, or runs out of it after some batches.

To fix it, evaluate under ``torch.no_grad()`` or ``torch.inference_mode()``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("memory-headroom-low", "cuda-oom-eval-logits", "autograd-graph-retained")


def in_the_source(script: Script) -> Iterator[Finding]:
    found = sorted(script.evaluations_with_graphs, key=lambda one: one.keeps is None)
    for one in found[:1]:
        keeps = (
            f", and {shown(one.keeps)} keeps what each batch leaves"
            if one.keeps is not None
            else ""
        )
        yield Finding(
            severity=Severity.WARNING if one.keeps is not None else Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.at)} runs the model after eval(), with nothing around it that "
                f"switches gradients off: it keeps all activations{keeps}"
            ),
            fixes=(
                Fix.python(
                    summary="evaluate without gradients",
                    paste="@torch.no_grad()\n"
                    "def evaluate(model, loader):\n"
                    "    model.eval()\n"
                    "    ...",
                ),
            ),
        )
