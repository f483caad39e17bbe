"""What adapters take, beside a frozen base in full or in 4 bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.adapters import halve
from ddoctor.forecast.model.blueprint import Blueprint, from_config, on_meta
from ddoctor.forecast.options import Lora
from tests.forecast import truth
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import ONE, SMALL, of, tokens, written
from tests.forecast.ways import HALF, WAYS, AdamW

BATCH = partial(tokens, 4, 128)
WIDTH, INNER, LAYERS = SMALL["hidden_size"], SMALL["intermediate_size"], SMALL["num_hidden_layers"]


def blueprint(source: str, text: str = "r=8", **more: Any) -> Blueprint:
    return from_config(source, lora=Lora(text), **more)


@pytest.mark.parametrize(
    ("text", "trained"),
    [
        # Four products of the width with itself, three of the width with the inner width.
        ("r=8", 8 * (4 * 2 * WIDTH + 3 * (WIDTH + INNER))),
        ("r=16,targets=all-linear", 16 * (4 * 2 * WIDTH + 3 * (WIDTH + INNER))),
        ("r=4,targets=q_proj+v_proj", 4 * 2 * 2 * WIDTH),
        ("r=4,targets=self_attn.q_proj,dora", 4 * 2 * WIDTH + WIDTH),
    ],
)
def test_what_is_trained(tmp_path: Path, text: str, trained: int) -> None:
    found = blueprint(written(tmp_path), text)
    told = found.read("bf16", "adamw")
    assert told.trainable == LAYERS * trained
    whole = from_config(str(tmp_path)).read("bf16", "adamw")
    assert told.parameters == whole.parameters + told.trainable
    assert f"with LoRA {text}" in found.name


@pytest.mark.parametrize(("kind", "scales"), [("nf4", 4 / 64), ("nf4-double", 1 / 64 + 4 / 16384)])
def test_bytes_of_weights_in_four_bits(tmp_path: Path, kind: Any, scales: float) -> None:
    found = blueprint(written(tmp_path), quantized=kind)
    model = on_meta(found.build)
    frozen = sum(one.nbytes for name, one in model.named_parameters() if name.endswith("packed"))
    frozen += sum(one.nbytes for one in model.buffers() if one.dtype.itemsize == 1)
    weights = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER)
    assert frozen == pytest.approx(weights * (1 / 2 + scales), rel=1e-3)
    whole = from_config(str(tmp_path)).read("bf16", "adamw")
    told = found.read("bf16", "adamw")
    assert told.parameters == whole.parameters + told.trainable


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_each_takes_less_than_the_one_before(tmp_path: Path, precision: Any) -> None:
    source = written(tmp_path, num_hidden_layers=2)
    full, adapted, packed = (
        of(one, precision).parts(ONE)
        for one in (from_config(source), blueprint(source), blueprint(source, quantized="nf4"))
    )
    assert adapted.optimizer < full.optimizer / 10
    assert packed.parameters < adapted.parameters
    # The inputs of frozen layers are not kept, and those in 4 bits compute in halves.
    assert adapted.total < full.total


CASES = [
    (text, quantized, way)
    for text in ("r=8", "r=8,dora")
    for quantized in (None, "nf4-double")
    for way in ({}, {"autocast": HALF}, WAYS["recomputed"], WAYS["fsdp"], WAYS["fsdp in halves"])
]


@pytest.mark.parametrize(
    ("text", "quantized", "way"),
    [
        ("r=8,dora", "nf4", {"autocast": HALF}),
        *(pytest.param(*case, marks=pytest.mark.ward) for case in CASES),
    ],
)
def test_a_step_takes_what_the_forecast_says(
    tmp_path: Path, text: str, quantized: Any, way: dict[str, Any]
) -> None:
    build = blueprint(written(tmp_path, num_hidden_layers=2), text, quantized=quantized).build
    told = footprint(build, BATCH, AdamW, **way)
    real = truth.peak(build, BATCH, AdamW, **way)
    assert told.total == pytest.approx(real, rel=0.03)


@pytest.mark.ward
def test_adapters_in_fp32_beside_weights_in_bf16(tmp_path: Path) -> None:
    source = written(tmp_path, num_hidden_layers=2)
    halves, full = (blueprint(source, text) for text in ("r=8,dora", "r=8,dora,fp32"))
    kinds = {name: one.dtype for name, one in halve(on_meta(full.build)).named_parameters()}
    assert {one for name, one in kinds.items() if ".base" in name} == {HALF}
    trained = ("down.weight", "up.weight", "magnitude")
    assert {one for name, one in kinds.items() if name.endswith(trained)} == {torch.float32}
    assert of(full, "bf16").parts(ONE).total > of(halves, "bf16").parts(ONE).total

    def build() -> torch.nn.Module:
        return halve(full.build())

    told = footprint(build, BATCH, AdamW, autocast=HALF)
    assert told.total == pytest.approx(truth.peak(build, BATCH, AdamW, HALF), rel=0.03)


def test_a_model_with_transposed_layers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 500,
        "n_positions": 64,
    }
    transformers.GPT2Config(**settings, architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    told = blueprint(str(tmp_path), "r=2,targets=c_attn").read("bf16", "adamw")
    assert told.trainable == 2 * 2 * (64 + 3 * 64)


def test_no_such_layer(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=r"--lora: .*there are down_proj, gate_proj, k_proj"):
        blueprint(written(tmp_path), "r=8,targets=query").read("bf16", "adamw")


@pytest.mark.parametrize("text", ["16", "r=0", "r=x", "r=8,targets=", "r=8,dora,x", "a=q", ""])
def test_it_is_written_otherwise(text: str) -> None:
    with pytest.raises(DoctorError, match=r"--lora .*: use r=16"):
        Lora(text)
