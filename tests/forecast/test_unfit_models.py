"""Models that cannot be forecast, and why."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import Tensor, nn

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.blueprint import Blueprint, from_config
from tests.forecast.small_models import ONE, SMALL, forecast, of, parts, tokens, written


class Halting(nn.Module):
    """As many layers as its own numbers ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> SimpleNamespace:
        while x.norm() > 1:
            x = self.layer(x)
        return SimpleNamespace(loss=x.sum())


def test_a_config_that_does_not_fit_its_own_model(tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(**SMALL, num_experts=4, num_experts_per_tok=8)
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(DoctorError, match="k not in range"):
        parts(str(tmp_path), samples=1)


class Lossless(nn.Linear):
    """Its outputs are all that it returns."""

    def __init__(self) -> None:
        super().__init__(8, 8)


def ones(samples: int, length: int) -> dict[str, Tensor]:
    return {"input": torch.ones(samples, 8)}


def test_a_model_without_a_loss() -> None:
    blueprint = Blueprint(name="Lossless", build=Lossless, batch=ones)
    with pytest.raises(DoctorError, match="forward pass returns no loss"):
        of(blueprint, samples=1).parts(ONE)


def test_a_fault_of_our_own_is_not_said_to_be_the_model_s(tmp_path: Path) -> None:
    known = forecast(written(tmp_path))
    unknown = dataclasses.replace(known, optimizer="lion")
    with pytest.raises(KeyError, match="lion"):
        unknown.parts(ONE)


def broken() -> nn.Module:
    raise ValueError("a head of twelve")


def test_what_cannot_even_be_built() -> None:
    blueprint = Blueprint(name="Broken", build=broken, batch=tokens)
    with pytest.raises(DoctorError, match="Broken cannot be built: a head of twelve"):
        blueprint.read("fp32", "adamw")


def test_what_depends_on_the_values_that_it_computes() -> None:
    blueprint = Blueprint(
        name="Halting", build=Halting, batch=lambda samples, length: {"x": torch.zeros(samples, 8)}
    )
    with pytest.raises(
        DoctorError, match=r"^Halting has control flow that depends on computed values"
    ):
        of(blueprint, samples=1).parts(ONE)


def test_what_is_no_file_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    """transformers would ask the Hub for it, several times."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DoctorError, match="pipe is no file"):
        from_config(str(tmp_path / "pipe"))
    with pytest.raises(DoctorError, match="File name too long"):
        from_config(str(tmp_path / ("a" * 300)))


@pytest.mark.parametrize("kind", ["FalconMamba", "Rwkv", "Mamba2"])
def test_recurrent_layers_without_their_kernels(tmp_path: Path, kind: str) -> None:
    sizes = {"vocab_size": 2000, "hidden_size": 64, "num_hidden_layers": 2}
    more = {"num_heads": 4, "head_dim": 32, "n_groups": 1} if kind == "Mamba2" else {}
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    config.architectures = [f"{kind}ForCausalLM"]
    config.save_pretrained(tmp_path)
    blueprint = from_config(str(tmp_path))
    if kind == "Mamba2":
        assert "as without their CUDA kernels" in blueprint.read("fp32", "adamw").name
        return
    with pytest.raises(DoctorError, match="run token by token without their CUDA kernels"):
        blueprint.read("fp32", "adamw")
