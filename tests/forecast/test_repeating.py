"""Logs of deep models from those of shallow ones, entry by entry as if the whole model ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from torch import Tensor, nn

from ddoctor.evidence.plan import Strategy
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model import optimizers, step
from ddoctor.forecast.model.adapters import adapt
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.repeating import WORTH, deeper, equal_blocks
from ddoctor.forecast.model.sharding import Sharding
from ddoctor.forecast.options import Lora
from ddoctor.memory_tracking.log import Entry
from ddoctor.memory_tracking.periods import entries, tokens
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import of
from tests.forecast.small_models import tokens as samples_of
from tests.forecast.ways import SPREAD, WAYS, AdamW

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

SMALL: Mapping[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": WORTH,
    "num_attention_heads": 4,
}
LLAMA = partial(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL))
ALL: Mapping[str, Mapping[str, Any]] = {**WAYS, "in halves": {"autocast": torch.bfloat16}}
SAMPLED = ("recomputed in part",)
# As on CUDA: its temporaries of all parameters exist at the same time.
AT_ONCE = partial(optimizers.made, "adamw")


def batch() -> Mapping[str, Tensor]:
    ids = torch.zeros(2, 64, dtype=torch.long)
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize(
    "way", [way if way in SAMPLED else pytest.param(way, marks=pytest.mark.ward) for way in ALL]
)
def test_every_allocation_of_a_deep_model(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = footprint(LLAMA, batch, AdamW, **ALL[way])
    monkeypatch.setattr(step, "equal_blocks", lambda model: None)
    assert told == footprint(LLAMA, batch, AdamW, **ALL[way])


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.ward)])
def test_other_samples_and_checkpointing_need_two_runs(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ForecastRow(strategy=strategy, gpus=2)
    first = of(Blueprint(name="small", build=LLAMA, batch=samples_of), samples=2, length=64)
    first.parts(row)
    others = [
        replace(first, samples=8),
        replace(first, checkpointing="every"),
        # Each second block: the first two runs alone would not show that.
        replace(first, checkpointing="selective:2"),
    ]
    told = []
    for other in others:
        with patch.object(step, "_run", wraps=step._run) as run:
            told.append((other.parts(row), run.call_count))
    assert [number for _, number in told] == [2, 2, 4]
    monkeypatch.setattr(step, "equal_blocks", lambda model: None)
    assert [replace(other, repeating=set()).parts(row) for other in others] == [
        parts for parts, _ in told
    ]


@pytest.mark.ward
@pytest.mark.parametrize("way", ["recomputed", "fsdp", "fsdp in halves", "accumulated"])
def test_every_allocation_with_an_update_at_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = footprint(LLAMA, batch, AT_ONCE, **ALL[way])
    monkeypatch.setattr(step, "equal_blocks", lambda model: None)
    whole = footprint(LLAMA, batch, AT_ONCE, **ALL[way])
    # The number of its kernels follows from their bytes, and only roughly.
    assert replace(told, work=None) == replace(whole, work=None)


@pytest.mark.parametrize("name", ["adamw-8bit", pytest.param("sgd", marks=pytest.mark.ward)])
def test_the_optimizers_of_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = partial(optimizers.made, name)
    told = footprint(LLAMA, batch, made)
    monkeypatch.setattr(step, "equal_blocks", lambda model: None)
    whole = footprint(LLAMA, batch, made)
    assert replace(told, work=None) == replace(whole, work=None)


@pytest.mark.parametrize("layers", [1, pytest.param(WORTH, marks=pytest.mark.ward)])
def test_the_passes_alone_have_the_operators_of_a_step(layers: int) -> None:
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": layers})
    build = partial(transformers.LlamaForCausalLM, config)
    made, half = partial(optimizers.made, "adamw"), torch.bfloat16
    like = step.footprint(build, batch, made, autocast=half)
    settings: Mapping[str, Any] = {"autocast": half, "checkpointing": "selective:op"}
    assert like.repeats == (layers == WORTH)
    whole = step.footprint(build, batch, made, **settings).work
    assert step.passes(build, batch, made, like, **settings) == whole
    assert whole != like.work


@pytest.mark.parametrize(
    ("sharding", "adapted"),
    [
        (None, False),
        *(
            pytest.param(sharding, adapted, marks=pytest.mark.ward)
            for sharding, adapted in ((None, True), (SPREAD, False), (SPREAD, True))
        ),
    ],
)
def test_what_a_plan_runs_is_not_the_whole_model(
    sharding: Sharding | None, adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def noted(logs: Any, depth: int) -> Any:
        found.append(deeper(logs, depth))
        return found[-1]

    def build() -> nn.Module:
        # Scales of weights in 4 bits are buffers of each block.
        return adapt(LLAMA(), Lora("r=2"), "nf4") if adapted else LLAMA()

    monkeypatch.setattr(step, "deeper", noted)
    step.footprint(build, batch, AT_ONCE, autocast=torch.bfloat16, sharding=sharding)
    assert len(found) == 1
    assert found != [None]


def test_blocks_that_differ_are_all_run() -> None:
    model: Any = LLAMA()
    assert equal_blocks(model) is not None
    model.model.layers[WORTH - 1].mlp.up_proj = nn.Linear(64, 173)
    assert equal_blocks(model) is None


def test_layers_of_two_kinds_are_all_run() -> None:
    config = transformers.Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8)
    assert equal_blocks(transformers.Gemma3ForCausalLM(config)) is None


def test_few_blocks_are_all_run() -> None:
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": WORTH - 1})
    assert equal_blocks(transformers.LlamaForCausalLM(config)) is None


def made(depth: int, last: int = 8) -> list[Entry]:
    """The log of blocks that each keep one tensor, the last one larger."""
    names = [f"model.layers.{block}" for block in range(depth)]
    sizes = [16] * (depth - 1) + [last]
    new = [Entry("new", one, sizes[one], "Activation", names[one]) for one in range(depth)]
    return [*new, *(Entry("free", one) for one in reversed(range(depth)))]


def test_a_log_comes_back() -> None:
    for depth in (3, 7):
        again = entries(tokens(made(depth), depth), depth)
        assert again == made(depth)


def test_a_log_goes_on_by_blocks() -> None:
    assert deeper([made(3), made(4), made(5)], 9) == made(9)


def test_a_third_log_that_comes_out_otherwise() -> None:
    assert deeper([made(3), made(4), made(5, last=24)], 9) is None
