"""ZeRO's memory with the activations of a small model on fake tensors, and of one on GPUs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import transformers
from msgspec.structs import replace

from ddoctor.evidence.plan import Strategy
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.companions import Companions
from ddoctor.forecast.model.blueprint import from_config
from ddoctor.forecast.model.forecasting import WORKSPACE
from ddoctor.forecast.model.zero import ZeroForecast
from ddoctor.forecast.optimizers import OPTIMIZERS
from ddoctor.forecast.zero import USUAL
from tests.forecast.small_models import forecast, written

GIB = 2**30
SLIM = replace(USUAL, reduce_bucket=1_000_000, prefetch_bucket=1_000_000, persistence=0)


def zero(source: str, samples: int = 4, length: int = 256, **more: Any) -> ZeroForecast:
    settings = {"precision": "bf16", "optimizer": "adamw-fp32", "buffers": SLIM, **more}
    return ZeroForecast(blueprint=from_config(source), samples=samples, length=length, **settings)


def row(strategy: Strategy, gpus: int = 8, turns: int = 1) -> ForecastRow:
    return ForecastRow(strategy=strategy, gpus=gpus, accumulation=turns)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ZeroForecast:
    """One, so that its step runs once."""
    return zero(written(tmp_path_factory.mktemp("small")))


def test_states_are_deepspeeds_and_activations_the_models(found: ZeroForecast) -> None:
    number = found.blueprint.read("bf16", "adamw").parameters
    first, third = (found.parts(row(strategy)) for strategy in ("zero-1", "zero-3"))
    assert first.parameters == pytest.approx(2 * number, rel=0.001)
    assert third.parameters == pytest.approx(2 * number / 8, rel=0.001)
    assert first.optimizer == third.optimizer == round(12 * number / 8)
    assert first.activations == third.activations
    # Of 4 samples of 256 tokens, and 2000 words, the loss's copies in fp32.
    assert first.logits == third.logits >= 4 * 4 * 256 * 2000
    assert found.moment(row("zero-1")).startswith("backward pass")


@pytest.mark.ward
def test_activations_are_those_of_fsdp_in_bfloat16(tmp_path: Path, found: ZeroForecast) -> None:
    whole = forecast(written(tmp_path), "bf16").parts(row("fsdp"))
    mine = found.parts(row("zero-3"))
    assert mine.activations == pytest.approx(whole.activations, rel=0.02)
    assert mine.logits == whole.logits


@pytest.mark.ward
def test_small_models_peak_where_there_are_no_activations(tmp_path: Path) -> None:
    found = zero(written(tmp_path), samples=1, length=8)
    late = found.parts(row("zero-1", 1))
    assert late.activations == 0
    assert late.temporaries > WORKSPACE
    assert found.moment(row("zero-1", 1)) in ("optimizer step", "reduction of the gradients")


def test_the_host_and_nvme(found: ZeroForecast) -> None:
    number = found.blueprint.read("bf16", "adamw").parameters
    assert found.host(row("zero-3")) == found.nvme(row("zero-3")) == 0
    assert found.host(row("zero-3-cpu")) == pytest.approx(20 * number / 8, rel=0.001)
    assert found.nvme(row("zero-3-nvme")) == pytest.approx(16 * number / 8, rel=0.001)
    on_cpu = found.parts(row("zero-3-cpu"))
    assert on_cpu.optimizer == 0
    assert on_cpu.gradients < found.parts(row("zero-3")).gradients


def test_the_reference_of_dpo_is_where_the_weights_are(found: ZeroForecast) -> None:
    size = 8 * 2**20
    paired = dataclasses.replace(found, companions=Companions(reference=size))
    sizes = {
        name: paired.parts(row(name)).reference
        for name in ("zero-1", "zero-2-offload", "zero-3", "zero-3-cpu", "zero-3-nvme")
    }
    assert list(sizes.values()) == [size, size, size // 8, 0, 0]
    cpu, nvme = row("zero-3-cpu"), row("zero-3-nvme")
    assert paired.host(cpu) - found.host(cpu) == size // 8
    assert paired.nvme(nvme) - found.nvme(nvme) == size // 8


@pytest.mark.ward
def test_small_parameters_stay_whole_at_stage_3(tmp_path: Path) -> None:
    source = written(tmp_path)
    norms = replace(SLIM, persistence=256)
    more = zero(source, buffers=norms).parts(row("zero-3")).parameters
    # Two of 256 elements in each of 4 layers, and a last one.
    assert more - zero(source).parts(row("zero-3")).parameters == 2 * 9 * 256


@pytest.mark.ward
def test_the_largest_micro_batch(tmp_path: Path) -> None:
    found = zero(written(tmp_path))
    each = row("zero-2")
    memory = round(2.5 * found.parts(each).total)
    most = found.most_samples(each, memory)
    assert most > found.samples
    for samples, fits in ((most, True), (most + 1 + most // 50, False)):
        used = zero(str(tmp_path), samples=samples).parts(each)
        assert (found.doubt * used.total <= memory) == fits


@pytest.mark.ward
def test_no_remedy_offloads(tmp_path: Path) -> None:
    assert "offload" not in zero(written(tmp_path)).gains(row("zero-2"))


# A table of LLaMA-7B on 8 A800s with 4096 tokens, DeepSpeed 0.14.2 and checkpointed blocks:
# max_memory_allocated (gist.github.com/chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a). It names no
# buffers, so they count as DeepSpeed's defaults. Its rows of stage 2 are not here: their memory
# between steps has no states of Adam.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
}


@pytest.mark.ward
@pytest.mark.parametrize(
    ("strategy", "samples", "measured"),
    [("zero-3", 2, 20.4), ("zero-3-offload", 2, 9.4), ("zero-3", 8, 39.1)],
)
def test_a_published_training(
    tmp_path: Path, strategy: Strategy, samples: int, measured: float
) -> None:
    transformers.LlamaConfig(**LLAMA).save_pretrained(tmp_path)
    found = zero(
        str(tmp_path), samples=samples, length=4096, buffers=USUAL, checkpointing="every"
    ).parts(row(strategy, turns=64 // 8 // samples or 1))
    assert (found.used - found.context) / GIB == pytest.approx(measured, rel=0.05)


@pytest.mark.ward
def test_updates_that_are_made_at_once(tmp_path: Path) -> None:
    assert OPTIMIZERS["adamw"].update
    source = written(tmp_path)
    at_once, in_place = (
        zero(source, samples=1, length=8, optimizer=name).parts(row("zero-3", 1)).temporaries
        for name in ("adamw", "adamw-fp32")
    )
    assert at_once > in_place
