"""The forecast of steps with evaluations between them against what the allocator really gave."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.forecast.model.step import Footprint
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.request import plan
from ddoctor.report.plan import seen
from tests.forecast import truth
from tests.forecast.guide import GUIDE, cells, cells_of, guide_options, save_llama_1b
from tests.forecast.model_set import SET, Batch
from tests.forecast.on_cpu import footprint
from tests.forecast.ways import WAYS, AdamW

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

WORST = 0.03
SAMPLED = ("dense",)
# Without gradients, oneDNN's convolutions take up to 6 % more or less than in training, which a
# GPU's do not.
CONVOLUTIONS = ("vit", "cnn with batch norm", "depthwise", "narrow blocks")


def larger(name: str) -> Batch:
    """Six times as many samples as a batch of training has."""
    return {key: value.repeat_interleave(6, 0) for key, value in SET[name].batch().items()}


def told(name: str, settings: Mapping[str, Any]) -> Footprint:
    case = SET[name]
    return footprint(case.build, case.batch, AdamW, evaluation=partial(larger, name), **settings)


def off(name: str, settings: Mapping[str, Any]) -> float:
    case = SET[name]
    batch, evaluation = case.batch, partial(larger, name)
    real = truth.peak(case.build, batch, AdamW, evaluation=evaluation, **settings)
    return told(name, settings).total / real - 1


@pytest.mark.parametrize(
    "name",
    [
        name if name in SAMPLED else pytest.param(name, marks=pytest.mark.ward)
        for name in SET
        if name not in CONVOLUTIONS
    ],
)
def test_the_whole_set(name: str) -> None:
    assert abs(off(name, {})) <= WORST


@pytest.mark.parametrize(
    "way",
    [way for way in WAYS if "in halves" not in way],
)
@pytest.mark.ward
def test_each_way(way: str) -> None:
    assert abs(off("dense", WAYS[way])) <= WORST


def test_it_is_a_phase_of_its_own() -> None:
    """The step that it follows stays the same, and its operators take no time of a step."""
    with_it = told("dense", {})
    case = SET["dense"]
    alone = footprint(case.build, case.batch, AdamW)
    assert with_it.peak.phase == "evaluation"
    assert with_it.peak.parts["Gradient"] == 0
    peaks = {one.phase: one.total for one in with_it.peaks}
    del peaks["evaluation"]
    assert peaks == {one.phase: one.total for one in alone.peaks}
    assert (with_it.flops, with_it.work) == (alone.flops, alone.work)


@pytest.mark.ward
def test_the_example_of_the_guide(tmp_path: Path) -> None:
    save_llama_1b(tmp_path)
    (command,) = re.findall(r"^ddoctor plan (.* --eval-batch .*)$", GUIDE, re.MULTILINE)
    planned = plan(guide_options(command, tmp_path))
    section = GUIDE.partition("## Evaluation")[2]
    shown, told = re.findall(r"^```\n(  .*?)```$", section, re.DOTALL | re.MULTILINE)[:2]
    assert cells(shown) == cells_of(planned)
    lines = dict(seen(Evidence([planned])))
    assert " ".join(told.split()) == f"evaluation {lines['evaluation']}"
    assert "the peak is in the evaluation" in lines["forecast"]


def small(folder: Path, **options: Any) -> PlanRequest:
    model: Any = SET["dense"].build()
    model.save_pretrained(folder)
    return PlanRequest(model=str(folder), sequence=256, gpus="2", **options)


@pytest.mark.parametrize("engine_name", ["fsdp", pytest.param("deepspeed", marks=pytest.mark.ward)])
def test_the_evaluation_that_does_not_fit(tmp_path: Path, engine_name: str) -> None:
    wanted = small(tmp_path, device_memory="4GiB", eval_batch=4096, engine=engine_name)
    report = engine.examine(Evidence([plan(wanted)]), "plan")
    first = report.findings[0]
    assert first.cause == "model-does-not-fit"
    assert "GiB on each GPU during evaluation; " in first.because
    assert "per_device_eval_batch_size=eval_batch_size // 2" in first.fixes[0].paste


@pytest.mark.ward
def test_one_that_takes_less_than_training_changes_nothing(tmp_path: Path) -> None:
    with_it = plan(small(tmp_path, device_memory="8GiB", micro_batch=8, eval_batch=8))
    alone = plan(small(tmp_path, device_memory="8GiB", micro_batch=8))
    assert with_it.rows == alone.rows
    assert with_it.largest_micro_batch == alone.largest_micro_batch


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"params": "1B"}, "--eval-batch goes with --model or --workload"),
        ({"model": "x", "tp": 2}, "--eval-batch does not go with --tp"),
    ],
)
def test_what_has_no_evaluation(options: Mapping[str, Any], told: str) -> None:
    with pytest.raises(DoctorError, match=told):
        plan(PlanRequest(gpu="h100-80", eval_batch=8, **options))
