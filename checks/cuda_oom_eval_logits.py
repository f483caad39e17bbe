"""Evaluation keeps more on the GPU than a step of training does.

What the model says of each sample, its logits, is the largest thing that a language model makes:
vocabulary × tokens. Where all of them are kept until the metrics are computed, or gathered from all
ranks, the evaluation runs out of memory after training had gone well.

Seen from outside: "CUDA out of memory" with evaluate, validate or prediction_step in the traceback.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("first-failure-masked",)


def in_evaluation(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "evaluation")
    if not found:
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{cuda_oom.sentence(found[0], run)}, while it evaluated; whether that is for "
            "what it keeps of each batch, an evaluation of few samples settles"
        ),
        evidence=tuple(cuda_oom.observations(found[0])),
        where=cuda_oom.where(found),
        fixes=tuple(_fixes(run)),
    )


def _fixes(run: TrainingRun) -> Iterator[Fix]:
    if "transformers" in run.framework:
        yield Fix(
            summary="keep predictions, not logits, and move them off the GPU now and then",
            paste=(
                "TrainingArguments(..., eval_accumulation_steps=8, per_device_eval_batch_size=4)\n"
                "Trainer(..., preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1))"
            ),
            language="python",
        )
        return
    yield Fix(
        summary="without a graph, and with nothing kept on the GPU but the metrics",
        paste=(
            "with torch.inference_mode():\n"
            "    for batch in loader:\n"
            "        logits = model(**batch).logits\n"
            "        right += (logits.argmax(-1) == batch['labels']).sum()"
        ),
        language="python",
    )
    yield Fix(
        summary="or smaller batches for the evaluation",
        paste="DataLoader(evaluation, batch_size=batch_size // 4)",
        language="python",
    )
