"""The optimizer has parameters that get no gradient, so the model does not learn.

An optimizer keeps the tensors that it was given. If the model is copied, wrapped in FSDP1, moved by
``to_empty`` or rebuilt after that, its parameters are others. The backward pass then
fills the gradients of these, and the optimizer skips its own, as they have none. The same happens
where a copy or an average of the model is given to the optimizer. And ``zero_grad()`` between the
backward pass and ``step()`` leaves no gradient to any parameter.

Symptoms: no error; the loss stays where it began, and steps of the optimizer take no time.

To fix it, make the optimizer after the model is complete: copied, moved and wrapped. Zero the
gradients before the backward pass, or after the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import RankUse, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity


def found(use: RankUse, run: TrainingRun) -> Iterator[Finding]:
    if use.flags and all(one.zero_gradients for one in use.flags):
        yield _finding(
            f"backward passes add gradients, but all were 0 in each of the first steps of "
            f"{_names(run)}, on all ranks: it updates nothing",
            _ZERO_BEFORE,
            Confidence.CERTAIN,
        )
    elif use.flags and all(one.without_gradients for one in use.flags):
        yield _finding(
            f"backward passes run, but no parameter of {_names(run)} had a gradient or a state "
            "after any of its first steps, on all ranks: it updates nothing",
            _MAKE_LAST,
            Confidence.CERTAIN,
        )


def in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    if use is not None and use.flags:
        return
    for one in script.zeroed_early[:1]:
        yield _finding(
            f"{shown(one.at)} zeroes the gradients of the backward pass before {shown(one.step)} "
            "takes them",
            _ZERO_BEFORE,
            Confidence.LIKELY,
        )


def _names(run: TrainingRun) -> str:
    return ", ".join(run.optimizers) or "the optimizer"


def _finding(because: str, fix: Fix, confidence: Confidence) -> Finding:
    return Finding(severity=Severity.ERROR, confidence=confidence, because=because, fixes=(fix,))


_WEIGHTS = "checkpoints of this run hold the weights that it began with"
_MAKE_LAST = Fix.python(
    summary="give the optimizer the parameters of the model that is trained, last",
    paste=(
        "model = DistributedDataParallel(model.to(device))\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)  # after it"
    ),
    caution=_WEIGHTS,
)
_ZERO_BEFORE = Fix.python(
    summary="zero the gradients before the backward pass, not between it and the step",
    paste="optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
    caution=_WEIGHTS,
)
