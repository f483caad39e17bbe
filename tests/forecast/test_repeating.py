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

from ddoctor.evidence.plan import Checkpointing, Strategy
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model import optimizers, step
from ddoctor.forecast.model.adapters import adapt
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.repeating import Repeating, deeper, repeating
from ddoctor.forecast.model.sharding import Sharding
from ddoctor.forecast.options import Lora
from ddoctor.memory_tracking.log import Entry
from ddoctor.memory_tracking.periods import entries, tokens
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import of
from tests.forecast.small_models import tokens as samples_of
from tests.forecast.ways import SPREAD, WAYS, AdamW

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

# As few as two runs with fewer of them are worth.
BLOCKS = 11
SMALL: Mapping[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
}
LLAMA = partial(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SMALL))


def llama(blocks: int) -> nn.Module:
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": blocks})
    return transformers.LlamaForCausalLM(config)


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
    monkeypatch.setattr(step, "repeating", lambda model, every: None)
    assert told == footprint(LLAMA, batch, AdamW, **ALL[way])


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.ward)])
@pytest.mark.parametrize(
    "checkpointing",
    [*(pytest.param(one, marks=pytest.mark.ward) for one in ("none", "every")), "selective:2"],
)
def test_two_runs_tell_the_memory(
    strategy: Strategy, checkpointing: Checkpointing, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ForecastRow(strategy=strategy, gpus=2)
    model = Blueprint(name="small", build=partial(llama, 20), batch=samples_of)
    few = replace(
        of(model, samples=2, length=64, precision="bf16-mixed"), checkpointing=checkpointing
    )
    with patch.object(step, "_run", wraps=step._run) as run:
        parts = few.parts(row)
    assert run.call_count == 2
    monkeypatch.setattr(step, "repeating", lambda model, every: None)
    assert replace(few).parts(row) == parts


@pytest.mark.ward
@pytest.mark.parametrize("way", ["recomputed", "fsdp", "fsdp in halves", "accumulated"])
def test_every_allocation_with_an_update_at_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = footprint(LLAMA, batch, AT_ONCE, **ALL[way])
    monkeypatch.setattr(step, "repeating", lambda model, every: None)
    whole = footprint(LLAMA, batch, AT_ONCE, **ALL[way])
    # The number of its kernels follows from their bytes, and only roughly.
    assert replace(told, work=None) == replace(whole, work=None)


@pytest.mark.parametrize("name", ["adamw-8bit", pytest.param("sgd", marks=pytest.mark.ward)])
def test_the_optimizers_of_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = partial(optimizers.made, name)
    told = footprint(LLAMA, batch, made)
    monkeypatch.setattr(step, "repeating", lambda model, every: None)
    whole = footprint(LLAMA, batch, made)
    assert replace(told, work=None) == replace(whole, work=None)


@pytest.mark.parametrize("layers", [1, pytest.param(BLOCKS, marks=pytest.mark.ward)])
def test_the_passes_alone_have_the_operators_of_a_step(layers: int) -> None:
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": layers})
    build = partial(transformers.LlamaForCausalLM, config)
    made, half = partial(optimizers.made, "adamw"), torch.bfloat16
    like = step.footprint(build, batch, made, autocast=half)
    settings: Mapping[str, Any] = {"autocast": half, "checkpointing": "selective:op"}
    assert like.repeats == (layers == BLOCKS)
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

    def noted(logs: Any, row: Repeating) -> Any:
        found.append(deeper(logs, row))
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
    assert repeating(model, every=1) == Repeating(BLOCKS, 1)
    model.model.layers[BLOCKS - 1].mlp.up_proj = nn.Linear(64, 173)
    assert repeating(model, every=1) is None


@pytest.mark.parametrize(
    ("blocks", "every", "depths"),
    [(24, 1, (3, 4)), (24, 2, (6, 8)), (28, 3, (10, 13)), (25, 2, (7, 9))],
)
def test_the_last_of_few_blocks_is_as_that_of_all(
    blocks: int, every: int, depths: tuple[int, int]
) -> None:
    row = repeating(llama(blocks), every)
    assert row is not None
    assert row.depths == depths
    assert row.depths[0] + row.more * row.period == blocks


def test_blocks_of_two_kinds_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every third layer reads all tokens, and each of the others some before it.
    config = transformers.Gemma3TextConfig(
        **{**SMALL, "num_hidden_layers": 27}, head_dim=16, sliding_window=8
    )
    config.layer_types = ["sliding_attention", "sliding_attention", "full_attention"] * 9
    build = partial(transformers.Gemma3ForCausalLM, config)
    assert repeating(build(), every=1) == Repeating(27, 3)
    assert repeating(build(), every=2) is None
    told = footprint(build, batch, AdamW)
    assert told.repeats
    monkeypatch.setattr(step, "repeating", lambda model, every: None)
    assert told == footprint(build, batch, AdamW)


@pytest.mark.parametrize(("blocks", "every"), [(BLOCKS - 1, 1), (17, 2)])
def test_few_blocks_are_all_run(blocks: int, every: int) -> None:
    assert repeating(llama(blocks), every) is None


def made(depth: int, last: int = 8, every: int = 1) -> list[Entry]:
    """The log of blocks that keep one tensor, the last one less; ``every``: each such twice."""
    names = [f"model.layers.{block}" for block in range(depth)]
    sizes = [16 * (1 + (block % every > 0)) for block in range(depth - 1)] + [last]
    new = [Entry("new", one, sizes[one], "Activation", names[one]) for one in range(depth)]
    return [*new, *(Entry("free", one) for one in reversed(range(depth)))]


def test_a_log_comes_back() -> None:
    for depth in (3, 7):
        again = entries(tokens(made(depth), depth, 1), depth, 1)
        assert again == made(depth)


def test_a_log_goes_on_by_blocks() -> None:
    assert deeper((made(3), made(4)), Repeating(9, 1)) == made(9)


def test_blocks_that_do_not_add_the_same() -> None:
    """Each second block keeps less, which the longer log alone shows."""
    assert deeper((made(3, 8), made(4, 16)), Repeating(9, 1)) is None
    assert deeper((made(6, 8, 2), made(8, 8, 2)), Repeating(12, 2)) == made(12, 8, 2)
    assert deeper((made(3, 8, 2), made(4, 8, 2)), Repeating(9, 1)) is None
