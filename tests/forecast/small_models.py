"""A small decoder by its configuration, and forecasts of what is like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from ddoctor.evidence.plan import MemoryParts
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model.blueprint import Blueprint, from_config
from ddoctor.forecast.model.forecasting import Forecast
from ddoctor.forecast.options import Precision

MIB = 2**20
ONE = ForecastRow(strategy="one-gpu", gpus=1)
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


def forecast(source: str, precision: Precision = "fp32", samples: int = 4) -> Forecast:
    return of(from_config(source), precision, samples)


def of(
    blueprint: Blueprint, precision: Precision = "fp32", samples: int = 4, length: int = 256
) -> Forecast:
    return Forecast(
        blueprint=blueprint,
        precision=precision,
        optimizer="adamw",
        samples=samples,
        length=length,
    )


def parts(source: str, precision: Precision = "fp32", samples: int = 4) -> MemoryParts:
    return forecast(source, precision, samples).parts(ONE)


def tokens(samples: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(samples, length, dtype=torch.long)
    return {"input_ids": ids, "labels": ids.clone()}
