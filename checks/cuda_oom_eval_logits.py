"""Evaluation runs out of GPU memory, because it keeps more than a training step does.

Logits (vocabulary × tokens) are the largest tensors of a language model. If evaluation keeps all of
them until it computes the metrics, or gathers them from all ranks, it runs out of memory. Training
itself fits.

Symptoms: "CUDA out of memory" with evaluate, validate or prediction_step in the traceback.

To fix it, evaluate under ``torch.inference_mode()``, keep predictions instead of logits, and use
smaller evaluation batches.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom, endings, snapshot_failures
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.snapshot_failures import SnapshotFailures
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("first-failure-masked",)


def in_evaluation(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "evaluation")
    if found:
        more = (
            ", during evaluation; an evaluation of few samples would show whether the tensors kept "
            "from each batch are the reason"
        )
        yield cuda_oom.finding(found, run, more, _fixes(run), confidence=Confidence.LIKELY)


def in_a_snapshot(failures: SnapshotFailures, run: TrainingRun | None) -> Iterator[Finding]:
    found = failures.of_kind("evaluation")
    if found:
        memory = found[0].memory
        first = next(one for one in memory.holders if one.in_evaluation)
        held = snapshot_failures.evaluation(memory) / GIB
        yield snapshot_failures.finding(
            found,
            f", of which evaluation had allocated {held:.1f}, most of it{endings.at(first.line)} "
            f"in {first.blocks} blocks",
            _fixes(run),
        )


def _fixes(run: TrainingRun | None) -> Iterator[Fix]:
    if run is not None and run.framework in ("transformers", "trl"):
        yield Fix.python(
            summary="keep predictions instead of logits, and move them to host memory",
            paste=(
                "TrainingArguments(..., eval_accumulation_steps=8, per_device_eval_batch_size=4)\n"
                "Trainer(..., preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1))"
            ),
        )
        return
    yield Fix.python(
        summary="evaluate without an autograd graph, and keep only metrics on the GPU",
        paste=(
            "with torch.inference_mode():\n"
            "    for batch in loader:\n"
            "        logits = model(**batch).logits\n"
            "        right += (logits.argmax(-1) == batch['labels']).sum()"
        ),
    )
    yield Fix.python(
        summary="or use smaller evaluation batches",
        paste="DataLoader(evaluation, batch_size=batch_size // 4)",
    )
