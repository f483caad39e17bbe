"""Weights of the model have become NaN, so that nothing more is learned.

Once a weight is NaN, each output, loss and gradient that it has a part in is NaN as well. The run
goes through all of its steps and writes its checkpoints, at full speed, and learns nothing more.
Usual origins are float16 without a ``GradScaler``, and a learning rate that is too high. So are a
division or a logarithm of 0 in the loss, and NaN in the data.

Symptoms: the loss is ``nan`` from some step on; there is no error.

To fix it, find the operation with ``torch.autograd.set_detect_anomaly(True)``, and load the last
checkpoint from before. Compute in bfloat16 rather than float16, clip the gradients, warm up.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.training import RankUse, TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Severity, Where

EXPLAINS = ("replicas-diverged",)
HALF = "float16"


def found(wrapping: Wrapping, run: TrainingRun, use: RankUse) -> Iterator[Finding]:
    spoiled = [one for one in wrapping.wrappers if one.spoiled]
    if not spoiled:
        return
    ranks = sorted({one.rank for one in spoiled})
    steps = max(one.steps for one in run.ranks)
    names = " and ".join(dict.fromkeys(one.name for one in spoiled))
    half = any(HALF in (one.autocast, one.parameter_dtype) for one in use.flags)
    scaled = (_BFLOAT16,) if half else ()
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"trained weights of {names} are NaN on {endings.ranks(ranks, every=run.ranks)} "
            f"within {steps} steps" + ("; it computes in float16" if half else "")
        ),
        where=Where(ranks=tuple(ranks) if len(ranks) < len(run.ranks) else ()),
        fixes=(*scaled, _FIND, _CLIP),
    )


_FIND = Fix.python(
    summary="find the operation that makes the first NaN, in a short run",
    paste=(
        "torch.autograd.set_detect_anomaly(True)  # raises at the operation; for this run only\n"
        "assert torch.isfinite(inputs).all()      # each batch, before the model gets it"
    ),
    caution="load weights from before the first NaN: those of now stay NaN",
)
_CLIP = Fix.python(
    summary="if large gradients make it, clip them, and begin with a lower learning rate",
    paste="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()",
)
_BFLOAT16 = Fix.python(
    summary="compute in bfloat16, which has the range of float32",
    paste='with torch.autocast(device_type="cuda", dtype=torch.bfloat16):',
    caution="GPUs before Ampere lack it: there, use torch.amp.GradScaler with float16",
)
