"""What DPO and GRPO take: as in a real step with a real reference, and a real cache."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import MemoryParts, Strategy
from ddoctor.forecast.closed_form import ForecastRow, Model
from ddoctor.forecast.companions import Companions, companions
from ddoctor.forecast.exchange import PlannedLink, PlannedLinks
from ddoctor.forecast.method import SFT, Method
from ddoctor.forecast.model.blueprint import Blueprint, from_config
from ddoctor.forecast.model.caches import cached
from ddoctor.forecast.model.outcome import Outcome
from ddoctor.forecast.model.preferences import selected
from tests.forecast import truth
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import ONE, SMALL, of, tokens, written
from tests.forecast.ways import HALF, WAYS, AdamW

DPO, GRPO, WITHOUT = (Method(name) for name in ("dpo", "grpo", "grpo:beta=0"))
BATCH = partial(tokens, 4, 128)
CONFIG = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 2})
EIGHT = ForecastRow(strategy="fsdp", gpus=8)


class Compared(nn.Module):
    """A policy and a reference, as a trainer has them."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.policy, self.reference = (transformers.LlamaForCausalLM(CONFIG) for _ in range(2))
        self.reference.requires_grad_(requires_grad=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Outcome:
        def scores(model: nn.Module) -> Tensor:
            logits = model(input_ids=input_ids, use_cache=False).logits
            return selected(logits / 1.0 if self.method.generates else logits, labels)

        if self.method.generates:
            with torch.no_grad():
                reference = scores(self.reference)
            own = scores(self.policy)
            each = torch.exp(reference - own) - (reference - own) - 1
            return Outcome(loss=(each - torch.exp(own - own.detach())).mean())
        own = scores(self.policy).sum(-1)
        with torch.no_grad():
            reference = scores(self.reference).sum(-1)
        chosen, rejected = (own - reference).chunk(2)
        return Outcome(loss=-nn.functional.logsigmoid(chosen - rejected).mean())


EXACT = ({"autocast": HALF}, WAYS["recomputed"], WAYS["fsdp"])
# In float32, two gradients of the logits are added: in place, if they are no fake tensors.
ADDED: tuple[dict[str, Any], ...] = ({}, {**WAYS["accumulated"]})


@pytest.mark.parametrize(
    ("way", "near"),
    [*((way, 0.04) for way in EXACT), *((way, 0.06) for way in ADDED)],
)
@pytest.mark.parametrize("method", [DPO, GRPO])
@pytest.mark.ward
def test_a_step_with_a_reference(
    tmp_path: Path, method: Method, way: dict[str, Any], near: float
) -> None:
    build = from_config(written(tmp_path, num_hidden_layers=2), method=method).build
    told = footprint(build, BATCH, AdamW, **way).total
    row = ForecastRow(strategy="fsdp" if "sharding" in way else "one-gpu", gpus=2)
    size = sum(one.nbytes for one in build().parameters())
    told += Companions(reference=size).added(MemoryParts(), row).reference
    real = truth.peak(partial(Compared, method), BATCH, AdamW, **way)
    assert told == pytest.approx(real, rel=near)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_the_score_of_each_token(dtype: torch.dtype) -> None:
    logits, labels = torch.randn(2, 5, 7, dtype=dtype), torch.randint(7, (2, 5))
    wanted = -nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    torch.testing.assert_close(selected(logits, labels), wanted.view(2, 5))


@pytest.mark.parametrize("method", [DPO, GRPO, WITHOUT])
def test_the_loss_where_the_model_is_its_own_reference(tmp_path: Path, method: Method) -> None:
    model = from_config(written(tmp_path, num_hidden_layers=1), method=method).build()
    loss = model(**tokens(2, 8)).loss
    # The logarithm of the sigmoid of 0; an advantage of 1.
    assert loss.item() == pytest.approx(math.log(2) if method == DPO else -1, abs=1e-4)
    loss.backward()
    assert any(one.grad is not None for one in model.parameters())


def test_a_pair_is_two_rows(tmp_path: Path) -> None:
    source = written(tmp_path, num_hidden_layers=2)
    pairs, single = (from_config(source, method=one).batch(3, 64) for one in (DPO, SFT))
    assert [len(one["labels"]) for one in (pairs, single)] == [6, 3]  # type: ignore[arg-type]


LATENT: dict[str, Any] = {
    **{**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 8, "first_k_dense_replace": 2},
    **{"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
    "qk_nope_head_dim": 16,
}
CACHES: list[Any] = [
    transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 2}),
    transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=500, n_positions=64),
    transformers.Gemma2Config(**SMALL, head_dim=16, num_key_value_heads=4),
    transformers.DeepseekV3Config(**LATENT),
]


@pytest.mark.parametrize("config", CACHES, ids=lambda one: one.model_type)
def test_what_generation_keeps_of_each_token(config: Any) -> None:
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        kept = model(torch.zeros(3, 10, dtype=torch.long), use_cache=True).past_key_values
    numbers = sum(one.keys.numel() + one.values.numel() for one in kept.layers)
    assert cached(config) == numbers / (3 * 10)


def test_a_model_that_does_not_say_what_it_keeps() -> None:
    config = transformers.MambaConfig(num_hidden_layers=2)
    assert cached(config) is None
    model = of(Blueprint(name="m", build=nn.Module, batch=tokens))
    told: dict[str, Any] = {"adapted": False, "cached": None, "length": 8}
    numbers = Model(parameters=10, trainable=10, precision="bf16", optimizer="adamw")
    assert model.companions == Companions()
    with pytest.raises(DoctorError, match="pass --vllm-share"):
        companions(GRPO, numbers, vllm=None, **told)
    assert companions(GRPO, numbers, vllm=7, **told) == Companions(reference=20, vllm=7)


def test_who_has_which_companions() -> None:
    numbers = Model(parameters=10, trainable=10, precision="bf16-mixed", optimizer="adamw")

    def found(method: Method, *, adapted: bool = False, vllm: int | None = None) -> Companions:
        return companions(method, numbers, adapted=adapted, cached=3, length=8, vllm=vllm)

    assert found(SFT) == Companions()
    # The computing precision is half.
    assert found(DPO) == Companions(reference=20)
    assert found(DPO, adapted=True) == Companions()
    assert found(GRPO) == Companions(reference=20, cache=3 * 8 * 2)
    assert found(WITHOUT, vllm=0) == Companions()


def test_a_reference_is_sharded_like_the_model() -> None:
    kept = Companions(reference=1600)
    rows: tuple[tuple[Strategy, int], ...] = (
        *(("ddp", 8), ("fsdp", 8), ("fsdp-gradients", 4)),
        *(("fsdp-hybrid", 16), ("fsdp-offload", 16)),
    )
    ways = [ForecastRow(strategy=strategy, gpus=gpus) for strategy, gpus in rows]
    assert [kept.on_gpu(way) for way in ways] == [1600, 200, 400, 200, 0]
    assert [kept.on_host(way) for way in ways] == [0, 0, 0, 0, 100]


def test_generation_is_before_the_step() -> None:
    step = MemoryParts(
        parameters=100, gradients=100, optimizer=200, activations=50, temporaries=9, context=1
    )
    row = ForecastRow(strategy="one-gpu", gpus=1, accumulation=4)
    found = Companions(cache=10).generating(step, row, samples=2, casts=60)
    # All samples of the step at once.
    assert found == MemoryParts(
        parameters=100, optimizer=200, temporaries=60, generation=80, context=1
    )
    assert Companions(vllm=10).generating(step, row, samples=2, casts=60) is None


@pytest.mark.ward
def test_the_peak_is_in_the_step_or_in_generation(tmp_path: Path) -> None:
    blueprint = from_config(written(tmp_path, num_hidden_layers=2), method=WITHOUT)
    small, large = (
        dataclasses.replace(of(blueprint), companions=Companions(cache=cache))
        for cache in (1, 2**30)
    )
    assert small.parts(ONE).generation == 0
    assert small.parts(ONE) == of(blueprint).parts(ONE)
    assert "backward" in small.moment(ONE)
    assert large.parts(ONE).generation == 4 * 2**30
    assert large.moment(ONE) == "generation of completions"
    most = large.most_samples(ONE, 16 * 2**30)
    fits = dataclasses.replace(large, samples=most)
    more = dataclasses.replace(large, samples=most + 1)
    assert large.doubt * fits.parts(ONE).total <= 16 * 2**30 < large.doubt * more.parts(ONE).total


@pytest.mark.parametrize("text", ["ppo", "DPO", "grpo:beta=1", "sft ", ""])
def test_other_methods(text: str) -> None:
    with pytest.raises(DoctorError, match="use sft, dpo, grpo or grpo:beta=0"):
        Method(text)


def test_a_model_that_classifies(tmp_path: Path) -> None:
    transformers.BertConfig(
        architectures=["BertForSequenceClassification"], num_hidden_layers=1
    ).save_pretrained(tmp_path)
    with pytest.raises(DoctorError, match="--method dpo goes with causal language models"):
        from_config(str(tmp_path), method=DPO).read("bf16", "adamw")


def test_its_second_forward_pass_gathers_again() -> None:
    one = Model(parameters=1e9, trainable=1e9, precision="bf16", optimizer="adamw")
    links = PlannedLinks(within=PlannedLink(rate=1e9))
    once, twice = (
        links.exposed(dataclasses.replace(one, forwards=number), "fsdp", 2, 0.0)
        for number in (1, 2)
    )
    # All-gathers of parameters in both passes, and the reduce-scatter of gradients.
    assert once == pytest.approx(3.0)
    assert twice == pytest.approx(4.0)
