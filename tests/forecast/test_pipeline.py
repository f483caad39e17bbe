"""Stages of a pipeline, experts and context parallelism, by steps on fake tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import ModelParallel, Strategy
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model import parts
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.forecasting import Forecast
from ddoctor.forecast.model.part import part_of
from ddoctor.forecast.model.pipeline import PipelineForecast
from ddoctor.forecast.model.sharding import Sharding
from ddoctor.forecast.model.stages import Stage
from tests.forecast import truth
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import SMALL, of, tokens
from tests.forecast.ways import AdamW

WIDTH, INNER = SMALL["hidden_size"], SMALL["intermediate_size"]
BLOCKS, VOCABULARY = SMALL["num_hidden_layers"], SMALL["vocab_size"]
BLOCK = 4 * WIDTH**2 + 3 * WIDTH * INNER + 2 * WIDTH
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 8}


def decoder(kind: str = "Llama", **more: Any) -> Blueprint:
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **more})
    build = getattr(transformers, f"{kind}ForCausalLM")
    return Blueprint(name=kind, build=lambda: build(config), batch=tokens, longest=512)


def stage(which: Stage, stages: int = 2, **more: Any) -> Blueprint:
    return part_of(decoder(**more), ModelParallel(pipeline=stages), which)


def row(strategy: Strategy, gpus: int, turns: int = 1, **sizes: int) -> ForecastRow:
    return ForecastRow(
        strategy=strategy, gpus=gpus, accumulation=turns, parallel=ModelParallel(**sizes)
    )


def test_the_first_stage_has_the_embedding_and_the_last_the_head() -> None:
    first, last = (stage(one).read("fp32", "adamw") for one in ("first", "last"))
    assert first.parameters == BLOCKS / 2 * BLOCK + VOCABULARY * WIDTH
    assert last.parameters == first.parameters + WIDTH
    assert first.layers == last.layers == BLOCKS / 2


@pytest.mark.ward
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_stage_takes_what_it_takes_on_real_tensors(which: Stage) -> None:
    one = stage(which)
    told = footprint(one.build, lambda: tokens(4, 256), AdamW)
    assert told.total == pytest.approx(
        truth.peak(one.build, lambda: tokens(4, 256), AdamW), rel=0.03
    )


@pytest.mark.parametrize(
    "sharding", [None, Sharding(ranks=2, pipelined=True)], ids=["whole", "sharded"]
)
def test_each_micro_batch_in_flight_adds_its_activations(sharding: Sharding | None) -> None:
    build = stage("first", num_hidden_layers=2).build
    two, three, four = (
        footprint(
            build,
            lambda: tokens(1, 64),
            AdamW,
            in_flight=number,
            accumulation=2,
            sharding=sharding,
        )
        for number in (2, 3, 4)
    )
    told = three.filled(two, 1)
    assert {peak.phase: peak.total for peak in told.peaks} == {
        peak.phase: peak.total for peak in four.peaks
    }
    assert told.reserved - three.reserved == told.total - three.total


def forecast(blueprint: Blueprint, samples: int = 1, length: int = 64) -> Forecast:
    return of(blueprint, samples=samples, length=length)


def test_the_stage_that_needs_most_counts() -> None:
    sizes = ModelParallel(pipeline=2)
    model, found = parts.divided(decoder(num_hidden_layers=2), forecast(decoder()), sizes)
    assert isinstance(found, PipelineForecast)
    whole = row("one-copy", 2, 4, pipeline=2)
    told = found.parts(whole)
    assert told.total == max(one.parts(whole).total for one in (found.first, found.last))
    assert "stage" in found.moment(whole)
    assert model.work is not None
    works = [one.work for one in (found.first, found.last)]
    assert model.work.flops == max(one.flops for one in works if one is not None)


def test_experts_are_divided_and_their_tokens_are_not() -> None:
    mixture = decoder("Mixtral", num_hidden_layers=1, **EXPERTS)
    sizes = ModelParallel(expert=4)
    whole = forecast(mixture)
    model, found = parts.divided(mixture, whole, sizes)
    experts = 4 * 3 * WIDTH * INNER
    assert whole.blueprint.read("fp32", "adamw").parameters - model.parameters == 0.75 * experts
    assert found.work is not None
    assert whole.work is not None
    assert found.work.flops == whole.work.flops
    # FSDP shards a part of the experts over fewer ranks: each keeps as much as without.
    alone, among = (
        one.parts(row("fsdp", 8, expert=size)) for one, size in ((whole, 1), (found, 4))
    )
    assert among.parameters == pytest.approx(alone.parameters, rel=0.01)
    assert among.communication < alone.communication


def test_the_busiest_experts_get_more_tokens() -> None:
    mixture = decoder("Mixtral", num_hidden_layers=1, **EXPERTS)
    whole = forecast(mixture)
    (even, evenly), (twice, doubled) = (
        parts.divided(mixture, whole, ModelParallel(expert=4, expert_load=load)) for load in (1, 2)
    )
    assert even.parameters == twice.parameters
    assert isinstance(evenly, Forecast)
    assert isinstance(doubled, Forecast)
    assert evenly.work is not None
    assert doubled.work is not None
    # Each token goes to two of them, forward once and backward twice.
    tokens = evenly.samples * evenly.length
    assert doubled.work.flops - evenly.work.flops == 3 * 2 * 2 * tokens * 3 * WIDTH * INNER
    # With many samples, the peak is where their activations are.
    less, more = (
        replace(one, samples=32).parts(row("ddp", 8)).activations for one in (evenly, doubled)
    )
    assert more > 1.1 * less


def test_matrices_of_experts_are_divided() -> None:
    mixture = decoder("Mixtral", num_hidden_layers=1, **EXPERTS)
    whole = forecast(mixture)
    model, found = parts.divided(mixture, whole, ModelParallel(tensor=2, expert=2))
    everything = whole.blueprint.read("fp32", "adamw").parameters
    experts, replicated = 4 * 3 * WIDTH * INNER, 4 * WIDTH + 3 * WIDTH
    assert model.parameters == (everything - experts - replicated) / 2 + experts / 4 + replicated
    assert found.work is not None
    assert whole.work is not None
    assert found.work.flops == pytest.approx(whole.work.flops / 2, rel=0.01)


def test_sequences_are_divided_and_attention_sees_all_keys() -> None:
    small = decoder(num_hidden_layers=1)
    whole = forecast(small, length=256)
    _, found = parts.divided(small, whole, ModelParallel(context=2))
    assert found.work is not None
    # All but attention halves, and attention to all keys of half of the queries halves as well.
    masked = whole.work
    assert masked is not None
    assert found.work.flops == pytest.approx(masked.flops / 2, rel=0.001)
    half, all_of_it = found.parts(row("ddp", 4, context=2)), whole.parts(row("ddp", 2))
    assert half.activations == pytest.approx(all_of_it.activations / 2, rel=0.05)
    assert half.parameters == all_of_it.parameters


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"tensor": 3}, "--tp 3: it must divide the model's 8 attention heads: use 1, 2, 4, 8"),
        ({"tensor": 8}, "its 2 heads of keys"),
        ({"pipeline": 3}, "--pp 3: .* 4 blocks"),
        ({"expert": 2}, "--ep divides experts, and the model has none"),
        ({"context": 3}, "--sequence 64: .* a multiple of 3"),
    ],
)
def test_what_does_not_divide(sizes: dict[str, int], said: str) -> None:
    one = decoder(num_key_value_heads=2)
    with pytest.raises(DoctorError, match=said.replace("its 2", "the model's 2")):
        parts.divided(one, forecast(one), ModelParallel(**sizes))


def test_only_causal_language_models_are_divided() -> None:
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
    vit = Blueprint(
        name="ViT",
        build=lambda: transformers.ViTForImageClassification(config),
        batch=lambda samples, length: {"pixel_values": torch.zeros(samples, 3, 224, 224)},
    )
    with pytest.raises(DoctorError, match="go with causal language models, and ViT is none"):
        parts.divided(vit, replace(forecast(vit)), ModelParallel(tensor=2))
