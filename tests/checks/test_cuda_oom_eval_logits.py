from __future__ import annotations

import pytest

from ddoctor.evidence.training import TrainingRun
from tests.conftest import Findings
from tests.gpu_memory_error import CROWDED, error, out_of_memory
from tests.training_run import ending, library, run, user

CAUSE = "cuda-oom-eval-logits"
EVALUATES = (user(70, "evaluate(model)"), user(40, "kept.append(logits)", function="evaluate"))
OF_TRAINER = (
    user(12, "trainer.train()"),
    library("transformers/trainer.py", 4200, "evaluation_loop"),
    library("transformers/trainer_pt_utils.py", 100, "nested_concat"),
)


def test_in_a_function_of_the_user(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(0, stack=EVALUATES), ending(1, "hung")))
    assert "train.py:40 in evaluate" in finding.because
    assert "inference_mode" in finding.fixes[0].paste


def test_in_the_trainer_of_transformers(findings: Findings) -> None:
    section = run(out_of_memory(0, stack=OF_TRAINER), framework="transformers")
    (finding,) = findings(CAUSE, section)
    assert "eval_accumulation_steps" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        run(out_of_memory(0)),
        run(out_of_memory(0, CROWDED, stack=EVALUATES)),
        run(out_of_memory(0, error(), stack=(user(5, "model.eval()"),))),
    ],
    ids=["in training", "another process", "not within"],
)
def test_quiet(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()
