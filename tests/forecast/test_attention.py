"""What each implementation of attention keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddoctor.forecast.model.blueprint import from_config
from ddoctor.forecast.options import Attention
from tests.forecast import truth
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import ONE, SMALL, of, tokens, written
from tests.forecast.ways import AdamW

SAMPLES, LENGTH = 4, 256


def activations(source: str, attention: Attention | None) -> int:
    return of(from_config(source, attention)).parts(ONE).activations


def test_eager_attention_keeps_the_scores_of_all_pairs(tmp_path: Path) -> None:
    """Of each layer the softmax in fp32: without dropout, its output is all that it keeps."""
    source = written(tmp_path)
    more = activations(source, "eager") - activations(source, "sdpa")
    pairs = SAMPLES * SMALL["num_attention_heads"] * LENGTH**2
    assert more >= SMALL["num_hidden_layers"] * pairs * torch.float32.itemsize


def test_the_default_is_sdpa_and_flash_keeps_as_much(tmp_path: Path) -> None:
    source = written(tmp_path)
    usual = activations(source, None)
    assert activations(source, "sdpa") == activations(source, "flash") == usual


@pytest.mark.ward
def test_eager_attention_takes_what_the_forecast_says(tmp_path: Path) -> None:
    blueprint = from_config(written(tmp_path), "eager")
    assert "with eager attention" in blueprint.name

    def batch() -> dict[str, torch.Tensor]:
        return tokens(2, 128)

    told = footprint(blueprint.build, batch, AdamW)
    real = truth.peak(blueprint.build, batch, AdamW)
    assert told.total == pytest.approx(real, rel=0.03)
