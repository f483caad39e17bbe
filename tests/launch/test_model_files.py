"""The parameters of models whose files are here, held against those that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ddoctor.launch.model_files import GATED, PLAIN, counted


@pytest.mark.parametrize("kind", sorted(GATED | PLAIN))
def test_as_many_as_transformers_makes(tmp_path: Path, kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind)
    with torch.device("meta"):
        make: Any = transformers.AutoModelForCausalLM
        model = make.from_config(config)
    config.save_pretrained(tmp_path / "model")
    (found,) = counted(["model"], tmp_path)
    real = sum(one.numel() for one in model.parameters())
    assert int(found.value) == pytest.approx(real, rel=0.02)
    assert found.file == "model/config.json"


def test_the_weights_count_before_the_shapes(tmp_path: Path) -> None:
    _write(tmp_path, {"model_type": "unknown", "torch_dtype": "bfloat16"}, total_size=26_000)
    assert [one.value for one in counted(["model"], tmp_path)] == ["13000"]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "unknown", "hidden_size": 64},
        {"model_type": "llama"},
        {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": {"bits": 4}},
        {"model_type": "llama", "torch_dtype": "int4"},
        {"model_type": "llama", "hidden_size": -1, "num_hidden_layers": "many"},
        ["no", "mapping"],
    ],
)
def test_nothing_is_told(tmp_path: Path, config: object) -> None:
    _write(tmp_path, config, total_size=26_000)
    assert [*counted(["model", "", "not/here", "a" * 3000, "\0"], tmp_path)] == []


def test_what_is_no_json_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": ')
    assert [*counted(["model"], tmp_path)] == []


def _write(folder: Path, config: object, *, total_size: int) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    if isinstance(config, dict) and config.get("torch_dtype") != "int4":
        index = {"metadata": {"total_size": total_size}, "weight_map": {}}
        (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
