"""The model is trained in evaluation mode, which switches dropout off and freezes batch norm.

``model.eval()`` before an evaluation stays in force until ``model.train()``. Without that call, the
training continues without dropout, and batch norm keeps the statistics of before. transformers'
``from_pretrained`` returns each model in evaluation mode. Some methods want that, such as
reinforcement learning, in which two passes must agree.

Symptoms: no error; after the first evaluation the training loss falls faster, and the validation
loss rises.

To fix it, call ``model.train()`` before each epoch, and after each evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import EvaluationMode, RankUse
from ddoctor.models import Confidence, Finding, Fix, Severity, Where

# An evaluation that computes gradients, of a few batches.
FEWEST_STEPS = 20


def found(use: RankUse) -> Iterator[Finding]:
    modes = [(one.rank, mode) for one in use.flags if (mode := _long(one.evaluation_mode))]
    if not modes:
        return
    one = min((mode for _, mode in modes), key=lambda mode: mode.steps)
    left = all(mode.trained_before for _, mode in modes)
    since = f"since {one.steps} steps" if left else "in all steps so far"
    again = ", and was in training mode before" if left else ""
    yield _finding(
        f"{one.name} learns in evaluation mode {since}{again}, and has layers that compute "
        f"something else then: {', '.join(one.layers)}",
        Severity.WARNING if left else Severity.NOTE,
        Where(ranks=tuple(rank for rank, _ in modes) if len(modes) < len(use.flags) else ()),
    )


def in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    if use is not None and use.flags:
        return
    for line in script.left_in_evaluation[:1]:
        yield _finding(
            f"after {shown(line)}, in a loop of the training, no line returns to training mode",
            Severity.WARNING,
            Where(),
        )


def _finding(because: str, severity: Severity, where: Where) -> Finding:
    return Finding(
        severity=severity,
        confidence=Confidence.LIKELY,
        because=because,
        where=where,
        fixes=(
            Fix.python(
                summary="call train() after each evaluation, and before the first step",
                paste=("model.eval()\nwith torch.no_grad():\n    validate(model)\nmodel.train()"),
            ),
        ),
    )


def _long(mode: EvaluationMode | None) -> EvaluationMode | None:
    return mode if mode is not None and mode.steps >= FEWEST_STEPS else None
