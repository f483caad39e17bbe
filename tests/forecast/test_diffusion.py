"""Diffusion models of diffusers: what a step takes, and what cannot be planned."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddoctor.errors import DoctorError
from ddoctor.forecast import request
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.images import Images
from ddoctor.forecast.model import diffusion
from ddoctor.forecast.model.blueprint import Blueprint, from_config
from ddoctor.forecast.options import Lora, Quantized
from tests.forecast import truth
from tests.forecast.guide import GUIDE, cells, cells_of, guide_options
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import ONE, of
from tests.forecast.ways import HALF, SPREAD, AdamW
from tests.test_cli import refused

UNET = {"block_out_channels": [32, 64], "sample_size": 16}
NARROW = {"num_attention_heads": 4, "attention_head_dim": 32, "num_layers": 4}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "UNet2DModel": {
        **UNET,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
        "num_class_embeds": 10,
    },
    # As in SDXL.
    "UNet2DConditionModel": {
        **UNET,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
        "cross_attention_dim": 64,
        "transformer_layers_per_block": [1, 2],
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 80,
        "use_linear_projection": True,
    },
    "DiTTransformer2DModel": {**NARROW, "out_channels": 8},
    "PixArtTransformer2DModel": {
        **NARROW,
        "sample_size": 32,
        "cross_attention_dim": 128,
        "caption_channels": 256,
    },
    "SD3Transformer2DModel": {
        **NARROW,
        "sample_size": 32,
        "caption_projection_dim": 128,
        "joint_attention_dim": 256,
        "pooled_projection_dim": 64,
    },
    "FluxTransformer2DModel": {
        **NARROW,
        "num_layers": 2,
        "num_single_layers": 2,
        "joint_attention_dim": 256,
        "pooled_projection_dim": 64,
        "guidance_embeds": True,
        "axes_dims_rope": [8, 12, 12],
    },
}
SMALL_IMAGE = {"FluxTransformer2DModel": Images("1x256x256")}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "whole": {},
    "recomputed": {"checkpointing": "every"},
    "sharded": {"sharding": SPREAD},
    "sharded, recomputed": {"sharding": SPREAD, "checkpointing": "every"},
}
SAMPLED = {("DiTTransformer2DModel", "whole"), ("DiTTransformer2DModel", "sharded")}
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "stable-diffusion-v1-5": (
        {"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768, "sample_size": 64},
        859_520_964,
    ),
    "stable-diffusion-xl-base-1.0": (
        {
            "_class_name": "UNet2DConditionModel",
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "attention_head_dim": [5, 10, 20],
            "block_out_channels": [320, 640, 1280],
            "cross_attention_dim": 2048,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "projection_class_embeddings_input_dim": 2816,
            "sample_size": 128,
            "transformer_layers_per_block": [1, 2, 10],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            "use_linear_projection": True,
        },
        2_567_463_684,
    ),
    "FLUX.1-dev": (
        {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True},
        11_901_408_320,
    ),
}
"""The published configs, without what is a default of its class, and their parameters."""


def save(folder: Path, config: Mapping[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def written(folder: Path, name: str, **more: Any) -> str:
    return save(folder, {"_class_name": name, **MODELS[name], **more})


def read(folder: Path, name: str, **more: Any) -> Blueprint:
    return from_config(written(folder, name, **more), images=SMALL_IMAGE.get(name))


# A block of Flux returns a view, which the model does not change.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=[] if (name, way) in SAMPLED else pytest.mark.ward)
        for name in MODELS
        for way in WAYS
    ],
)
def test_it_takes_what_the_forecast_says(tmp_path: Path, name: str, way: str) -> None:
    """Convolutions too: their kernels on a CPU are known (tests/forecast/convolutions.py)."""
    blueprint = read(tmp_path, name)
    batch = partial(blueprint.batch, 4, blueprint.length(None))
    told = footprint(blueprint.build, batch, AdamW, **WAYS[way])
    real = truth.peak(blueprint.build, batch, AdamW, **WAYS[way])
    assert told.total == pytest.approx(real, rel=0.03)


@pytest.mark.ward
@truth.needs_known_bfloat16
@pytest.mark.parametrize("name", MODELS)
def test_computing_in_halves(tmp_path: Path, name: str) -> None:
    blueprint = read(tmp_path, name)
    batch = partial(blueprint.batch, 4, blueprint.length(None))
    told = footprint(blueprint.build, batch, AdamW, autocast=HALF)
    real = truth.peak(blueprint.build, batch, AdamW, HALF)
    assert told.total == pytest.approx(real, rel=0.03)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_parameters(tmp_path: Path, name: str) -> None:
    config, parameters = PUBLISHED[name]
    model = from_config(save(tmp_path, config)).read("bf16", "adamw")
    assert model.parameters == parameters


def test_rows_of_a_plan(tmp_path: Path) -> None:
    source = written(tmp_path, "DiTTransformer2DModel")
    command = "--model M --micro-batch 2 --gpu h100-80 --gpus 1,2 --checkpointing every"
    plan = request.plan(guide_options(command, Path(source)))
    assert [one.strategy for one in plan.rows] == ["one-gpu", "ddp", "fsdp-gradients", "fsdp"]
    assert all(one.parts.total > 0 and one.step is not None for one in plan.rows)
    assert plan.sequence is None


def test_real_sharding_frees_what_the_last_layers_of_dit_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gathering its first block again, which the plan does."""
    monkeypatch.setattr(diffusion, "_gather_first", lambda model: None)
    blueprint = read(tmp_path, "DiTTransformer2DModel")
    with pytest.raises(RuntimeError, match="and DTensor"):
        truth.peak(blueprint.build, partial(blueprint.batch, 1, 0), AdamW, sharding=SPREAD)


def test_checkpointing_keeps_less(tmp_path: Path) -> None:
    blueprint = read(tmp_path, "DiTTransformer2DModel")
    none, every = (
        footprint(blueprint.build, partial(blueprint.batch, 4, 0), AdamW, checkpointing=which).total
        for which in ("none", "every")
    )
    assert every < none


@pytest.mark.ward
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lora", [None, Lora("r=4"), Lora("r=4,fp32")], ids=str)
def test_weights_in_bfloat16(tmp_path: Path, name: str, lora: Lora | None) -> None:
    """UNets and their inputs must have one dtype, which no layer converts."""
    quantized: Quantized | None = "nf4" if lora is not None and lora.full else None
    source = written(tmp_path, name)
    blueprint = from_config(source, images=SMALL_IMAGE.get(name), lora=lora, quantized=quantized)
    found = of(blueprint, "bf16", length=blueprint.length(None))
    for row in (ONE, ForecastRow(strategy="fsdp", gpus=2)):
        assert found.parts(row).total > 0


def test_the_size_of_an_image(tmp_path: Path) -> None:
    def shape(name: str, images: str | None, **more: Any) -> list[int]:
        source = written(tmp_path, name, **more)
        made = from_config(source, images=None if images is None else Images(images))
        batch: Any = made.batch(2, 5)
        return list(batch.get("sample", batch.get("hidden_states")).shape)

    assert shape("UNet2DConditionModel", None) == [2, 4, 16, 16]
    assert shape("UNet2DConditionModel", None, sample_size=[8, 24]) == [2, 4, 8, 24]
    assert shape("UNet2DConditionModel", "1x256x512") == [2, 4, 32, 64]
    assert shape("UNet2DModel", "1x64x64") == [2, 3, 64, 64]
    # 2 × 2 places of 16 channels in one row.
    assert shape("FluxTransformer2DModel", "1x256x512") == [2, 16 * 32, 64]
    assert shape("FluxTransformer2DModel", None) == [2, 64 * 64, 64]


def test_text_has_the_length_of_the_pipeline_or_the_given_one(tmp_path: Path) -> None:
    with_text = read(tmp_path, "FluxTransformer2DModel")
    assert (with_text.length(None), with_text.length(64)) == (512, 64)
    batch: Any = with_text.batch(2, 64)
    assert batch["encoder_hidden_states"].shape == (2, 64, 256)
    assert batch["txt_ids"].shape == (64, 3)
    without = read(tmp_path, "DiTTransformer2DModel")
    assert without.length(None) == 0
    with pytest.raises(DoctorError, match="latents of 32x32 reads no text"):
        without.length(64)


def test_older_checkpoints_name_another_class(tmp_path: Path) -> None:
    old = {"_class_name": "Transformer2DModel", "norm_type": "ada_norm_zero"}
    config = {**MODELS["DiTTransformer2DModel"], **old, "patch_size": 2, "sample_size": 32}
    found = from_config(save(tmp_path, config))
    assert found.name == "DiTTransformer2DModel on latents of 32x32"
    assert found.read("fp32", "adamw").blocks == ("BasicTransformerBlock",)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"_class_name": "AutoencoderKL"}, "inputs of AutoencoderKL, only those of .*--workload"),
        ({"_class_name": "Nonsense"}, "cannot make the inputs of Nonsense.*--workload"),
        ({"_class_name": ["UNet2DModel"]}, "cannot make the inputs of "),
        ({"_class_name": "UNet2DModel"}, "no sample_size: pass .* --images 1x512x512"),
        ({"_class_name": "UNet2DModel", "sample_size": "x"}, "sample_size is no number above 0: x"),
        (
            {"_class_name": "SD3Transformer2DModel", "joint_attention_dim": 0},
            "joint_attention_dim is no number above 0: 0",
        ),
        (
            {
                **{"_class_name": "UNet2DConditionModel", "sample_size": 8},
                **{"addition_embed_type": "image", "encoder_hid_dim": 8},
            },
            "its addition_embed_type 'image'.*--workload",
        ),
        (
            {"_class_name": "SD3Transformer2DModel", "num_layers": 10**9},
            "num_layers is 1000000000, and a plan allows at most",
        ),
        (
            {"_class_name": "UNet2DModel", "sample_size": 8, "down_block_types": ["Nonsense"]},
            "UNet2DModel on pixels of 8x8 cannot be built: ",
        ),
    ],
)
def test_what_cannot_be_planned(tmp_path: Path, config: Mapping[str, Any], told: str) -> None:
    with pytest.raises(DoctorError, match=told):
        from_config(save(tmp_path, config)).read("fp32", "adamw")


def test_a_user_gets_one_line(tmp_path: Path) -> None:
    options = ("plan", "--gpu", "h100-80", "--model")
    other = refused(*options, save(tmp_path, {"_class_name": "AutoencoderKL"}))
    assert "cannot make the inputs of AutoencoderKL" in other
    assert "--workload package.module:factory" in other
    # What lies in the current folder is imported first.
    (tmp_path / "diffusers.py").write_text("raise ImportError")
    missing = refused(*options, written(tmp_path, "UNet2DModel"), cwd=tmp_path)
    assert missing.endswith("needs diffusers: run python -m pip install diffusers")


def test_a_pipeline_has_several_models(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(DoctorError, match="a pipeline of diffusers: pass the folder of the model"):
        from_config(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attention": "eager"}, "--attention eager, --loss and --method go with models of tran"),
        ({"loss": "fused"}, "this is one of diffusers"),
        ({"images": Images("2x512x512")}, "a sample is one image"),
        ({"images": Images("1x512x513")}, "in multiples of 16 pixels"),
    ],
)
def test_options_of_other_models(tmp_path: Path, options: Any, told: str) -> None:
    with pytest.raises(DoctorError, match=told):
        from_config(written(tmp_path, "PixArtTransformer2DModel"), **options)


def test_the_model_of_the_guide(tmp_path: Path) -> None:
    config, _ = PUBLISHED["stable-diffusion-v1-5"]
    model = from_config(save(tmp_path, config)).read("bf16-mixed", "adamw")
    assert f"{model.name}, {model.parameters / 1e6:.3g}M parameters" in " ".join(GUIDE.split())


@pytest.mark.ward
def test_the_table_of_the_guide(tmp_path: Path) -> None:
    (command, shown) = re.findall(
        r"^ddoctor plan (--model stable-diffusion.*?)$.*?^```\n(  strategy .*?)```$",
        GUIDE,
        re.DOTALL | re.MULTILINE,
    )[0]
    config, _ = PUBLISHED["stable-diffusion-v1-5"]
    plan = request.plan(guide_options(command, Path(save(tmp_path, config))))
    assert cells(shown) == cells_of(plan)
