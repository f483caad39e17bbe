"""The optimizer has parameters that get no gradient, so the model does not learn.

An optimizer keeps the tensors that it was given. If the model is copied, wrapped in FSDP1, moved by
``to_empty`` or rebuilt after that, its parameters are others. The backward pass then
fills the gradients of these, and the optimizer skips its own, as they have none. The same happens
where a copy or an average of the model is given to the optimizer.

Symptoms: no error; the loss stays where it began, and steps of the optimizer take no time.

To fix it, make the optimizer after the model is complete: copied, moved and wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.training import RankUse, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity


def found(use: RankUse, run: TrainingRun) -> Iterator[Finding]:
    if not use.flags or not all(one.without_gradients for one in use.flags):
        return
    names = ", ".join(run.optimizers) or "the optimizer"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"backward passes run, but no parameter of {names} had a gradient or a state after "
            "any of its first steps, on all ranks: it updates nothing"
        ),
        fixes=(
            Fix.python(
                summary="give the optimizer the parameters of the model that is trained, last",
                paste=(
                    "model = DistributedDataParallel(model.to(device))\n"
                    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)  # after it"
                ),
                caution="checkpoints of this run hold the weights that it began with",
            ),
        ),
    )
