"""Configurations as people have them, and what is read off their models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.blueprint import from_config
from ddoctor.forecast.model.reading import Reading, read

MIB = 2**20
SMALL: dict[str, Any] = {
    "vocab_size": 2000,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}


def written(folder: Path, **more: Any) -> str:
    settings = {**SMALL, "architectures": ["LlamaForCausalLM"], **more}
    transformers.LlamaConfig(**settings).save_pretrained(folder)
    return str(folder)


def reading(folder: Path, samples: int = 4, length: int | None = 256) -> Reading:
    return read(from_config(written(folder)), "fp32", samples, length)


def test_a_decoder(tmp_path: Path) -> None:
    found = reading(tmp_path)
    with_weights = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    assert found.parameters == sum(one.numel() for one in with_weights.parameters())
    assert (found.layers, found.length) == (4, 256)
    # 165.4 MiB by the allocator's events with AdamW, of which 48 are weights and states.
    assert found.activations == pytest.approx(117.4 * MIB, rel=0.01)


def test_twice_the_samples_take_twice_the_activations(tmp_path: Path) -> None:
    assert reading(tmp_path, 8).activations == pytest.approx(
        2 * reading(tmp_path, 4).activations, rel=0.01
    )


def test_the_file_and_its_folder_are_the_same(tmp_path: Path) -> None:
    written(tmp_path)
    assert from_config(str(tmp_path / "config.json")).name == "LlamaForCausalLM"


def test_no_longer_than_its_positions(tmp_path: Path) -> None:
    assert reading(tmp_path, 1, None).length == 512
    with pytest.raises(DoctorError, match="allows 512 at most"):
        reading(tmp_path, 1, 513)


def test_halves_take_less_than_floats(tmp_path: Path) -> None:
    blueprint = from_config(written(tmp_path))
    pure, mixed, full = (
        read(blueprint, precision, 4, 256).activations
        for precision in ("bf16", "bf16-mixed", "fp32")
    )
    assert 0.4 * full < pure < mixed < full


def test_images(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    config.architectures = ["ViTForImageClassification"]
    config.save_pretrained(tmp_path)
    assert read(from_config(str(tmp_path)), "fp32", 2, None).activations > 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"architectures": None}, "names no architecture"),
        ({"architectures": ["NoSuchModel"]}, "names no architecture"),
        ({"architectures": ["LlamaModel"]}, "needs 'input_ids' and a loss"),
    ],
)
def test_a_config_that_cannot_be_trained(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    with pytest.raises(DoctorError, match=told):
        from_config(written(tmp_path, **more))


def test_no_config_at_all(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="--model"):
        from_config(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    with pytest.raises(DoctorError, match="abacus"):
        from_config(str(tmp_path))


def test_what_depends_on_the_values_that_it_computes(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_key_value_heads=2)
    config.architectures = ["MixtralForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(DoctorError, match="cannot be run without data"):
        read(from_config(str(tmp_path)), "fp32", 1, 64)
