"""Models that read images and text: what a step with images takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Strategy
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.images import Images
from ddoctor.forecast.model.blueprint import Blueprint, from_config
from tests.forecast import truth
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import ONE, SMALL, forecast, of
from tests.forecast.ways import HALF, SPREAD, AdamW

TEXT: Any = {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 8}
SEEN: Any = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 112,
    "patch_size": 14,
}
SIZES: Any = {"fullatt_block_indexes": [2], "window_size": 112, "out_hidden_size": 256}


def llava() -> Any:
    vision = transformers.CLIPVisionConfig(**SEEN)
    text = transformers.LlamaConfig(**TEXT)
    return transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=9)


def gemma() -> Any:
    text = {**TEXT, "head_dim": 32, "sliding_window": 64}
    return transformers.Gemma3Config(
        vision_config=SEEN, text_config=text, mm_tokens_per_image=16, image_token_index=9
    )


def qwen() -> Any:
    vision = {"depth": 3, "hidden_size": 128, "intermediate_size": 512, "num_heads": 4, **SIZES}
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6]}}
    return transformers.Qwen2_5_VLConfig(
        vision_config=vision, text_config=text, image_token_id=9, video_token_id=10
    )


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "LlavaForConditionalGeneration": (llava, "2x112x112"),
    "Gemma3ForConditionalGeneration": (gemma, "2x112x112"),
    "Qwen2_5_VLForConditionalGeneration": (qwen, "2x140x196"),
}


def written(folder: Path, name: str) -> str:
    config = MODELS[name][0]()
    config.architectures = [name]
    config.save_pretrained(folder)
    return str(folder)


def read(folder: Path, name: str, images: str | None = None) -> Blueprint:
    return from_config(written(folder, name), images=Images(images or MODELS[name][1]))


FIRST, *OTHERS = MODELS
IN_TURN = [FIRST, *(pytest.param(one, marks=pytest.mark.ward) for one in OTHERS)]


# LLaVA's language model returns a view, which it does not change.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("name", IN_TURN)
@pytest.mark.parametrize(
    "way",
    [
        {},
        pytest.param({"sharding": SPREAD}, marks=pytest.mark.ward),
        pytest.param({"autocast": HALF}, marks=pytest.mark.ward),
    ],
    ids=["whole", "sharded", "in halves"],
)
def test_it_takes_what_the_forecast_says(tmp_path: Path, name: str, way: dict[str, Any]) -> None:
    blueprint = read(tmp_path, name)
    batch = partial(blueprint.batch, 2, 256)
    told = footprint(blueprint.build, batch, AdamW, **way)
    real = truth.peak(blueprint.build, batch, AdamW, **way)
    assert told.total == pytest.approx(real, rel=0.03)


def test_each_image_has_the_tokens_that_the_encoder_makes(tmp_path: Path) -> None:
    # 112 / 14 patches a side; Gemma 3 pools them to the number in its config.
    for name, tokens in (
        ("LlavaForConditionalGeneration", 64),
        ("Gemma3ForConditionalGeneration", 16),
    ):
        blueprint = read(tmp_path / name, name)
        assert f"with 2 images of {tokens} tokens" in blueprint.name
        batch: Any = blueprint.batch(3, 256)
        assert int((batch["input_ids"] == 9).sum()) == 3 * 2 * tokens


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    # The config of llava-hf/llava-1.5-7b-hf.
    seen: Any = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            **seen, num_attention_heads=16, image_size=336, patch_size=14, projection_dim=768
        ),
        text_config=transformers.LlamaConfig(vocab_size=32_064, max_position_embeddings=4096),
    )
    config.architectures = ["LlavaForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    model = from_config(str(tmp_path), images=Images("2x336x336")).read("bf16", "adamw")
    told = f"{model.name}, {model.parameters / 1e9:.3g}B parameters"
    guide = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text(encoding="utf-8")
    assert told in " ".join(guide.split())


def test_sides_are_rounded_to_whole_tokens_of_patches(tmp_path: Path) -> None:
    blueprint = read(tmp_path, "Qwen2_5_VLForConditionalGeneration", "1x150x190")
    batch: Any = blueprint.batch(1, 64)
    # 28 pixels of a token: 5 × 7 tokens of 2 × 2 patches.
    assert batch["image_grid_thw"].tolist() == [[1, 10, 14]]
    assert batch["pixel_values"].shape == (140, 3 * 2 * 14 * 14)
    assert "of 35 tokens" in blueprint.name


@pytest.mark.ward
def test_more_images_take_more_memory(tmp_path: Path) -> None:
    few, many = (
        of(read(tmp_path, "Qwen2_5_VLForConditionalGeneration", images)).parts(ONE).total
        for images in ("1x112x112", "4x112x112")
    )
    assert many > few


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_encoder_without_images_is_idle(tmp_path: Path, strategy: Strategy) -> None:
    found = forecast(written(tmp_path, "LlavaForConditionalGeneration"))
    assert "on text alone" in found.blueprint.name
    assert found.parts(ForecastRow(strategy=strategy, gpus=2)).total > 0


@pytest.mark.parametrize(
    ("name", "images", "told"),
    [
        ("LlavaForConditionalGeneration", "2x448x448", "pass their number, as --images 2x112x112"),
        ("LlamaForCausalLM", "1x112x112", "cannot make the images of LlamaForCausalLM: leave it"),
        ("Idefics3ForConditionalGeneration", "1x512x512", "which come with pixel_attention_mask"),
        ("Mistral3ForConditionalGeneration", "1x512x512", "which have any size"),
    ],
)
def test_what_it_does_not_read(tmp_path: Path, name: str, images: str, told: str) -> None:
    kinds: dict[str, Callable[[], Any]] = {
        "LlamaForCausalLM": transformers.LlamaConfig,
        "Idefics3ForConditionalGeneration": transformers.Idefics3Config,
        "Mistral3ForConditionalGeneration": transformers.Mistral3Config,
        "LlavaForConditionalGeneration": llava,
    }
    config = kinds[name]()
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    with pytest.raises(DoctorError, match=told):
        from_config(str(tmp_path), images=Images(images))


def test_images_that_do_not_fit_a_sample(tmp_path: Path) -> None:
    blueprint = read(tmp_path, "LlavaForConditionalGeneration", "4x112x112")
    with pytest.raises(DoctorError, match="pass --sequence 260 or more"):
        blueprint.batch(1, 256)


@pytest.mark.parametrize("text", ["4", "0x448x448", "4x448", "x", "4x448x448x3"])
def test_how_they_are_written(text: str) -> None:
    with pytest.raises(DoctorError, match="give number, height and width"):
        Images(text)
