"""Evaluation runs out of GPU memory, because it keeps more than a training step does.

Logits (vocabulary × tokens) are the largest tensors of a language model. If evaluation keeps all of
them until it computes the metrics, or gathers them from all ranks, it runs out of memory. Training
itself fits.

Symptoms: "CUDA out of memory" with evaluate, validate or prediction_step in the traceback.

To fix it, evaluate under ``torch.inference_mode()``, keep predictions instead of logits, and use
smaller evaluation batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import cuda_oom, endings, snapshot_failures
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.script_source import shown, with_keywords
from ddoctor.analysis.snapshot_failures import SnapshotFailures
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("first-failure-masked",)
TRAINER = re.compile(r"^(?:transformers\.Trainer|trl\.SFTTrainer)$")
LANGUAGE = re.compile(r"^transformers\.AutoModelForCausalLM\.from_|^trl\.SFTTrainer$")
KEEPS_LESS = frozenset({"preprocess_logits_for_metrics", "**"})
LESS = frozenset({"batch_eval_metrics", "prediction_loss_only", "predict_with_generate"})
"""Arguments by which less is kept than all logits."""


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


def in_the_source(script: Script) -> Iterator[Finding]:
    """The Trainer keeps all logits of a language model until it computes the metrics."""
    language = [one for one in script.calls if LANGUAGE.search(one.name)]
    for one in script.calls:
        keeps = "compute_metrics" in one.keywords and not KEEPS_LESS & {*one.keywords}
        less = any(LESS & {*other.keywords} for other in script.calls)
        if TRAINER.search(one.name) and keeps and not less and language:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} computes metrics, and nothing reduces the logits of "
                f"{shown(language[0].at)}: the evaluation keeps vocabulary × tokens of all "
                "samples on the GPU",
                fixes=(
                    Fix.python(
                        summary="keep the predicted tokens alone",
                        paste=with_keywords(
                            one,
                            preprocess_logits_for_metrics="lambda logits, _: logits.argmax(-1)",
                        ),
                        caution="compute_metrics then gets tokens instead of logits",
                    ),
                ),
            )
            return


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
