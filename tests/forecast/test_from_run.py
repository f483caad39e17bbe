"""The model of a script, from the bundle of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.forecast.from_run import RunBundle
from ddoctor.forecast.options import PlanRequest
from tests.memory_sweep.sample import swept
from tests.training_run import run


def wrapping(kind: Literal["ddp", "fsdp1"] = "ddp", trained: float = 1.0) -> Wrapping:
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind=kind,
                name="Llama",
                parameters=10**9,
                parameter_bytes=4 * 10**9,
                trainable_bytes=round(trained * 4e9),
                block="Layer",
                blocks=16,
            )
            for rank in range(2)
        )
    )


def use(dtype: str = "float32", autocast: str = "bfloat16") -> RankUse:
    flags = (RankFlags(rank=rank, parameter_dtype=dtype, autocast=autocast) for rank in range(2))
    return RankUse(hosts=(), flags=tuple(flags))


def of(optimizer: str = "AdamW") -> Section:
    return msgspec.structs.replace(run(), optimizers=(optimizer,))


def written(folder: Path, *sections: Section) -> tuple[Path]:
    bundle.write(folder / "run.json", Evidence(sections))
    return (folder / "run.json",)


def test_its_model_precision_and_optimizer(tmp_path: Path) -> None:
    paths = written(tmp_path, wrapping(trained=0.25), use(), of())
    found = RunBundle(paths).model(PlanRequest(micro_batch=4))
    assert (found.name, found.parameters, found.trainable) == ("Llama", 1e9, 0.25e9)
    assert (found.precision, found.optimizer) == ("bf16-mixed", "adamw")
    assert (found.layers, found.blocks) == (16, ("Layer",))
    assert found.activations == 0


@pytest.mark.parametrize(
    ("dtype", "autocast", "precision"),
    [
        ("float32", "", "fp32"),
        ("float32", "float16", "fp16-mixed"),
        ("bfloat16", "bfloat16", "bf16"),
    ],
)
def test_precisions(tmp_path: Path, dtype: str, autocast: str, precision: str) -> None:
    paths = written(tmp_path, wrapping(), use(dtype, autocast), of("SGD"))
    found = RunBundle(paths).model(PlanRequest())
    assert (found.precision, found.optimizer) == (precision, "sgd")


def test_what_was_said_goes_first(tmp_path: Path) -> None:
    found = RunBundle(written(tmp_path, wrapping(), use(), of("Lion"))).model(
        PlanRequest(precision="bf16", optimizer="adamw-8bit")
    )
    assert (found.precision, found.optimizer) == ("bf16", "adamw-8bit")


def test_activations_are_those_of_a_sample_that_was_seen(tmp_path: Path) -> None:
    paths = written(tmp_path, wrapping(), use(), of(), swept(4, each=0.5))
    assert RunBundle(paths).model(PlanRequest()).activations == 4 * 2**29
    assert RunBundle(paths).model(PlanRequest(micro_batch=6)).activations == 6 * 2**29


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ((use(), of()), "it has no model: describe the model with --model CONFIG"),
        ((wrapping("fsdp1"), use(), of()), "FSDP1 reports only its shards: describe the model"),
        ((wrapping(), use(), of("Lion")), "does not record the optimizer: pass --optimizer"),
        ((wrapping(), use("float64"), of()), "does not record the precision: pass --prec"),
    ],
)
def test_what_no_plan_can_be_made_of(
    tmp_path: Path, sections: tuple[Section, ...], told: str
) -> None:
    with pytest.raises(DoctorError, match=told):
        RunBundle(written(tmp_path, *sections)).model(PlanRequest())
