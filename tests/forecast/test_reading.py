"""Configurations as people have them, and what is read off their models."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Strategy
from ddoctor.forecast import request
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model import blueprint
from ddoctor.forecast.model.blueprint import Blueprint, from_config, on_meta
from ddoctor.forecast.model.forecasting import WORKSPACE, Forecast
from ddoctor.forecast.model.recomputing import recompute
from ddoctor.forecast.options import PlanRequest
from ddoctor.memory_tracking.blocks import rows
from tests.forecast.guide import GUIDE, cells, cells_of, guide_options, save_llama_1b
from tests.forecast.small_models import (
    MIB,
    ONE,
    SMALL,
    forecast,
    of,
    parts,
    tokens,
    written,
)


def test_a_decoder(tmp_path: Path) -> None:
    found = from_config(written(tmp_path)).read("fp32", "adamw")
    with_weights = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    assert found.parameters == sum(one.numel() for one in with_weights.parameters())
    assert (found.layers, found.blocks) == (4, ("LlamaDecoderLayer",))


def test_its_parts(tmp_path: Path) -> None:
    found = parts(written(tmp_path))
    # 165.4 MiB by the allocator's events with AdamW, of which 48 are weights and states.
    assert found.parameters + found.optimizer == pytest.approx(48 * MIB, rel=0.01)
    step = found.activations + found.logits + found.temporaries - WORKSPACE
    assert step == pytest.approx(117.4 * MIB, rel=0.01)
    # Of 4 samples of 256 tokens each, and 2000 words: with what the loss makes of it, and the
    # gradients of both.
    assert found.logits == 4 * 4 * 4 * 256 * 2000


def attending(how: str) -> Blueprint:
    """The same decoder, with one of the ways to compute its attention."""
    config = transformers.LlamaConfig(**{**SMALL, "attn_implementation": how})
    build = partial(transformers.LlamaForCausalLM, config)
    return Blueprint(name=how, build=build, batch=tokens)


def test_its_arithmetic_is_what_torch_counts() -> None:
    """With attention by products of matrices: of the CPU's own operator torch counts nothing."""
    blueprint = attending("eager")
    with FlopCounterMode(display=False) as counter:
        blueprint.build()(**tokens(4, 256)).loss.backward()
    flops = of(blueprint).flops
    assert flops == counter.get_total_flops()
    # Six for each token and parameter that multiplies, and twelve for each pair of tokens.
    products = blueprint.read("fp32", "adamw").parameters - 2000 * 256
    assert flops == pytest.approx(6 * 1024 * products + 12 * 4 * 1024 * 256**2, rel=0.01)


def test_the_attention_of_a_cpu_is_counted_too() -> None:
    own, eager = (of(attending(how)).flops for how in ("sdpa", "eager"))
    # Its backward pass computes the scores again.
    assert eager < own < 1.1 * eager


@pytest.mark.ward
def test_twice_the_samples_take_twice_the_activations(tmp_path: Path) -> None:
    source = written(tmp_path)
    assert parts(source, samples=8).activations == pytest.approx(
        2 * parts(source).activations, rel=0.01
    )


def test_each_strategy(tmp_path: Path) -> None:
    whole = forecast(written(tmp_path))
    rows: tuple[tuple[Strategy, int], ...] = (
        ("one-gpu", 1),
        ("ddp", 2),
        ("fsdp", 2),
        ("fsdp", 8),
        ("fsdp-gradients", 8),
        ("fsdp-hybrid", 16),
    )
    one, replicated, two, eight, kept, hybrid = (
        whole.parts(ForecastRow(strategy=strategy, gpus=gpus)) for strategy, gpus in rows
    )
    assert replicated.communication == pytest.approx(one.parameters, rel=0.01)
    assert two.optimizer == pytest.approx(one.optimizer / 2, rel=0.01)
    assert eight.optimizer == pytest.approx(one.optimizer / 8, rel=0.01)
    assert eight.activations == two.activations == one.activations
    assert eight.logits == two.logits == one.logits
    assert kept.communication > eight.communication
    assert hybrid == eight
    assert whole.moment(ONE).startswith("backward pass")


@pytest.mark.ward
def test_what_fsdp_keeps_on_the_cpu(tmp_path: Path) -> None:
    whole = forecast(written(tmp_path))
    for gpus in (1, 2, 8):
        on_gpu, on_cpu = (
            ForecastRow(strategy="fsdp", gpus=gpus),
            ForecastRow(strategy="fsdp-offload", gpus=gpus),
        )
        there, here = whole.parts(on_gpu), whole.parts(on_cpu)
        # Buffers stay.
        assert (here.gradients, here.optimizer) == (0, 0)
        assert here.parameters < 1000
        assert here.activations == there.activations
        assert here.total < there.total
        assert whole.host(on_gpu) == 0
        # In floats: parameters, gradients and two states of each.
        number = whole.blueprint.read("fp32", "adamw").parameters
        assert whole.host(on_cpu) == pytest.approx(16 * number / gpus, rel=0.01)
    assert whole.gains(ONE)["offload"] > 0


def test_gradients_stay_from_one_micro_batch_to_the_next(tmp_path: Path) -> None:
    whole = forecast(written(tmp_path))
    two = whole.parts(ForecastRow(strategy="one-gpu", gpus=1, accumulation=2))
    assert two.gradients == pytest.approx(two.parameters, rel=0.01)
    assert whole.parts(ForecastRow(strategy="one-gpu", gpus=1, accumulation=5)) == two


@pytest.mark.ward
def test_the_largest_micro_batch_is_the_last_that_fits(tmp_path: Path) -> None:
    source = written(tmp_path)
    memory = round(2.5 * forecast(source).parts(ONE).total)
    most = forecast(source).most_samples(ONE, memory)
    assert most > 8
    # Segments of 20 MiB are large beside what a sample takes here.
    fits, more = (forecast(source, samples=number).parts(ONE) for number in (most - 2, most + 3))
    assert Forecast.doubt * fits.total <= memory < Forecast.doubt * more.total


@pytest.mark.ward
def test_what_remedies_save(tmp_path: Path) -> None:
    gains = forecast(written(tmp_path)).gains(ONE)
    assert gains["checkpointing"] > gains["smaller batch"] > 0.3 * 117.4 * MIB
    # Of 32 MiB of states a quarter is left; segments are of 20 MiB.
    assert gains["8 bits"] > 8 * MIB


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_as_the_environment_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = PlanRequest(model=str(written(tmp_path)), gpu="a100-40", gpus="1", precision="fp32")
    (usual,) = (plan := request.plan(wanted)).rows
    assert not plan.expandable
    monkeypatch.setenv(name, "max_split_size_mb:512,expandable_segments:True")
    (grown,) = (plan := request.plan(wanted)).rows
    assert plan.expandable
    assert grown.parts.used == usual.parts.used
    assert grown.parts.unused < usual.parts.unused


@pytest.mark.ward
def test_the_guide_with_expandable_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama_1b(tmp_path)
    found = re.search(
        r"^(PYTORCH_\w+)=(\S+) ddoctor plan (.*)$\n```\n\n```\n((?s:.*?))```\n\n"
        r"Without it, the totals are ([\d., and]+) GiB",
        GUIDE,
        re.MULTILINE,
    )
    assert found is not None
    name, value, command, shown, totals = found.groups()
    options = guide_options(command, tmp_path)
    usual = [f"{row.parts.total / 2**30:.1f}" for row in request.plan(options).rows]
    assert usual == totals.replace(" and ", ", ").split(", ")
    monkeypatch.setenv(name, value)
    assert cells(shown) == cells_of(request.plan(options))


def test_what_it_would_need_with_expandable_segments(tmp_path: Path) -> None:
    usual = forecast(written(tmp_path))
    grown = dataclasses.replace(usual, expandable=True)
    assert usual.with_expandable(ONE) == grown.parts(ONE)
    assert grown.with_expandable(ONE) is None


def test_what_it_would_need_without_checkpointing(tmp_path: Path) -> None:
    kept = forecast(written(tmp_path))
    again = dataclasses.replace(kept, checkpointing="every")
    assert kept.without_checkpointing(ONE) is None
    assert again.without_checkpointing(ONE) == kept.parts(ONE)
    assert again.parts(ONE).used < 0.95 * kept.parts(ONE).used


def test_checkpointing_changes_no_other_build_of_the_model(tmp_path: Path) -> None:
    blueprint = from_config(written(tmp_path))
    one, other = blueprint.build(), blueprint.build()
    recompute(one, "every")
    assert not one.config.use_cache  # type: ignore[union-attr]
    assert other.config.use_cache  # type: ignore[union-attr]


def test_the_file_and_its_folder_are_the_same(tmp_path: Path) -> None:
    written(tmp_path)
    assert from_config(str(tmp_path / "config.json")).name == "LlamaForCausalLM"


def test_no_longer_than_its_positions(tmp_path: Path) -> None:
    blueprint = from_config(written(tmp_path))
    assert blueprint.length(None) == 512
    with pytest.raises(DoctorError, match="allows at most 512"):
        blueprint.length(513)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["Trainer"]}, "names no architecture"),
        ({"architectures": [5, "pipeline"]}, "names no architecture"),
        ({"architectures": 5}, "names no architecture"),
        ({"max_position_embeddings": "many"}, "longest sequence|max_position_embeddings"),
        ({"max_position_embeddings": 0}, "longest sequence"),
        ({"num_hidden_layers": 2_000}, "more than 500 modules"),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers is 10+, and .* at most 2,000",
        ),
        ({"text_config": {"depths": [3, 10**9]}}, "depths is .3, 10+., and .* at most 2,000"),
        ({"num_labels": 10**9}, "num_labels is 10+, and .* at most 1,000,000"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}, "--model"),
    ],
)
def test_a_config_that_makes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], words: str
) -> None:
    monkeypatch.setattr(blueprint, "MOST_MODULES", 500)
    path = Path(written(tmp_path)) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')")
    with pytest.raises(DoctorError, match=words):
        from_config(str(path)).read("fp32", "adamw")


def test_many_modules_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blueprint, "MOST_ROW", 3)
    on_meta(lambda: nn.Sequential(*(nn.ReLU() for _ in range(3))))
    with pytest.raises(DoctorError, match="more than 3 modules in a row"):
        on_meta(lambda: nn.Sequential(*(nn.ReLU() for _ in range(4))))


def test_as_many_layers_as_real_models_have(tmp_path: Path) -> None:
    fields = {"hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    path = Path(written(tmp_path)) / "config.json"
    document = json.loads(path.read_text()) | fields | {"num_hidden_layers": 126}
    path.write_text(json.dumps(document))
    assert from_config(str(path)).read("fp32", "adamw").layers == 126
    resnet = transformers.ResNetConfig(
        depths=[3, 8, 320, 3], architectures=["ResNetForImageClassification"]
    )
    resnet.save_pretrained(tmp_path / "resnet")
    # A ResNet of 1,000 layers, three in each block.
    assert from_config(str(tmp_path / "resnet")).read("fp32", "adamw").parameters > 3e8


def test_a_config_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(" " * (17 * 2**20))
    with pytest.raises(DoctorError, match="at most 16 MiB"):
        from_config(str(path))


@pytest.mark.ward
def test_halves_take_less_than_floats(tmp_path: Path) -> None:
    source = written(tmp_path)
    pure, mixed, full = (
        parts(source, precision).activations for precision in ("bf16", "bf16-mixed", "fp32")
    )
    assert 0.4 * full < pure < mixed < full


def test_images(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    config.architectures = ["ViTForImageClassification"]
    config.save_pretrained(tmp_path)
    assert parts(str(tmp_path)).activations > 0
    found = from_config(str(tmp_path)).read("fp32", "adamw")
    assert (found.layers, found.blocks) == (2, ("ViTLayer",))


def test_an_encoder_with_a_decoder_has_blocks_of_two_classes(tmp_path: Path) -> None:
    config = transformers.BartConfig(
        vocab_size=500,
        d_model=64,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=128,
    )
    config.architectures = ["BartForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    found = from_config(str(tmp_path)).read("fp32", "adamw")
    assert (found.layers, found.blocks) == (3, ("BartEncoderLayer", "BartDecoderLayer"))


def test_a_row_of_single_layers_is_none_of_blocks() -> None:
    plain = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))
    assert [len(row) for row in rows(nn.ModuleList((plain, blocks)))] == [3]


WHISPER: dict[str, Any] = {
    "vocab_size": 2000,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_source_positions": 100,
    "max_target_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
LLAVA: dict[str, Any] = {
    "text_config": {**SMALL, "model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
}
SEGFORMER: dict[str, Any] = {"hidden_sizes": [16, 32, 64, 128], "image_size": [64, 96]}


@pytest.mark.parametrize(
    ("config", "architecture", "settings", "name"),
    [
        ("ViTConfig", "ViTForImageClassification", {"image_size": 64, "hidden_size": 96}, ""),
        ("SegformerConfig", "SegformerForSemanticSegmentation", SEGFORMER, ""),
        ("BertConfig", "BertForQuestionAnswering", SMALL, ""),
        ("BertConfig", "BertForSequenceClassification", SMALL, ""),
        ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER, ""),
        ("LlavaConfig", "LlavaForConditionalGeneration", LLAVA, " (on text alone)"),
    ],
)
@pytest.mark.ward
def test_what_each_kind_is_fed(
    tmp_path: Path, config: str, architecture: str, settings: dict[str, Any], name: str
) -> None:
    made = getattr(transformers, config)(**settings)
    made.architectures = [architecture]
    made.save_pretrained(tmp_path)
    blueprint = from_config(str(tmp_path))
    assert blueprint.name == architecture + name
    assert of(blueprint, samples=2, length=32).parts(ONE).activations > 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"architectures": None}, "names no architecture"),
        ({"architectures": ["NoSuchModel"]}, "names no architecture"),
        ({"architectures": ["LlamaModel"]}, "ddoctor cannot make the input of LlamaModel"),
    ],
)
def test_a_config_that_cannot_be_trained(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    with pytest.raises(DoctorError, match=told):
        from_config(written(tmp_path, **more))


def test_no_config_at_all(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="--model"):
        from_config(str(tmp_path))
    for config, told in (
        ({"model_type": "abacus"}, "abacus"),
        ({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 12}, "not a multiple"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(DoctorError, match=told):
            from_config(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "experts"),
    [
        ("Mixtral", {"num_local_experts": 4}),
        ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}),
    ],
)
def test_experts(tmp_path: Path, kind: str, experts: dict[str, Any]) -> None:
    config = getattr(transformers, f"{kind}Config")(**SMALL, **experts, num_key_value_heads=2)
    config.architectures = [f"{kind}ForCausalLM"]
    config.save_pretrained(tmp_path)
    assert of(from_config(str(tmp_path)), samples=1, length=64).parts(ONE).activations > 0
    found = from_config(str(tmp_path)).read("fp32", "adamw")
    with_weights = getattr(transformers, f"{kind}ForCausalLM")(config)
    assert found.parameters == sum(one.numel() for one in with_weights.parameters())


@pytest.mark.ward
def test_each_token_pays_for_the_experts_that_it_asks(tmp_path: Path) -> None:
    flops = []
    for asked in (1, 2):
        config = transformers.MixtralConfig(
            **SMALL, num_local_experts=4, num_key_value_heads=2, num_experts_per_tok=asked
        )
        config.architectures = ["MixtralForCausalLM"]
        config.save_pretrained(tmp_path)
        flops.append(forecast(str(tmp_path)).flops)
    of_one_in_all_layers = 4 * 3 * 256 * 688
    assert flops[1] - flops[0] == 6 * 1024 * of_one_in_all_layers
