"""Mamba by its kernels: what a layer keeps of each token."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ddoctor.forecast.model import scans
from ddoctor.forecast.model.blueprint import Blueprint, from_config
from ddoctor.forecast.model.step import footprint
from tests.forecast.small_models import ONE, of
from tests.forecast.ways import HALF, SPREAD, AdamW

LAYERS, WIDTH, STATES, RANK = 2, 256, 16, 16
INNER = 2 * WIDTH


def read(folder: Path, layers: int = LAYERS) -> Blueprint:
    config = transformers.MambaConfig(vocab_size=500, hidden_size=WIDTH, num_hidden_layers=layers)
    config.architectures = ["MambaForCausalLM"]
    config.save_pretrained(folder)
    return from_config(str(folder))


def test_gradients_have_the_shapes_of_what_they_are_of(tmp_path: Path) -> None:
    blueprint = read(tmp_path)
    model = blueprint.build().train()
    with scans.by_kernels():
        model(**blueprint.batch(2, 64)).loss.backward()
    assert all(one.grad is not None and one.grad.shape == one.shape for one in model.parameters())


def test_the_layers_run_as_before_afterwards(tmp_path: Path) -> None:
    read(tmp_path).build()
    before = getattr(sys.modules[scans.MODULE], scans.NAME)
    with scans.by_kernels():
        pass
    assert getattr(sys.modules[scans.MODULE], scans.NAME) is before


def test_a_layer_keeps_what_its_kernels_save(tmp_path: Path) -> None:
    """MambaInnerFn saves input and gate, the chosen rows, B, C, and the output of the scan."""
    kept: dict[int, int] = {}

    def pack(one: torch.Tensor) -> torch.Tensor:
        storage = one.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return one

    blueprint = read(tmp_path, 1)
    model: Any = blueprint.build()
    layer = model.backbone.layers[0].mixer
    samples, length = 2, 128
    tokens = samples * length
    hidden = torch.zeros(samples, length, WIDTH)
    with scans.by_kernels(), torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        layer.train()(hidden)
    weights = {one.untyped_storage().data_ptr() for one in layer.parameters()}
    own = sum(size for place, size in kept.items() if place not in weights)
    chosen = RANK + 2 * STATES
    state = samples * INNER * 2 * STATES
    numbers = tokens * (2 * INNER + chosen + 2 * STATES + INNER) + state
    # Besides, the input of the first product, and A before and after its sign changes.
    assert own == 4 * (numbers + tokens * WIDTH + 2 * INNER * STATES)


@pytest.mark.parametrize("way", [{}, {"sharding": SPREAD}, {"autocast": HALF}], ids=str)
def test_a_step_takes_more_with_each_layer(tmp_path: Path, way: dict[str, Any]) -> None:
    few, many = (
        footprint(blueprint.build, partial(blueprint.batch, 2, 128), AdamW, **way)
        for blueprint in (read(tmp_path / str(one), one) for one in (2, 4))
    )
    assert many.total > few.total


def test_a_plan_is_by_kernels(tmp_path: Path) -> None:
    blueprint = read(tmp_path, 24)
    assert "with the kernels of mamba_ssm" in blueprint.read("fp32", "adamw").name
    # A loop over tokens would take hours.
    assert of(blueprint, samples=1, length=4096).parts(ONE).total > 0


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    # The config of state-spaces/mamba-2.8b-hf.
    config = transformers.MambaConfig(vocab_size=50_280, hidden_size=2560, num_hidden_layers=64)
    config.architectures = ["MambaForCausalLM"]
    config.save_pretrained(tmp_path)
    model = from_config(str(tmp_path)).read("bf16-mixed", "adamw")
    told = f"{model.name}, {model.parameters / 1e9:.3g}B parameters"
    guide = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text(encoding="utf-8")
    assert told in " ".join(guide.split())
