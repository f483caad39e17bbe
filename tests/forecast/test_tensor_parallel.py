"""One rank's part under tensor parallelism, against torch's own on real tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import ModelParallel
from ddoctor.forecast.model.blueprint import Blueprint, on_meta
from ddoctor.forecast.model.part import part_of
from ddoctor.forecast.model.sharding import Sharding, apart
from ddoctor.forecast.model.step import Footprint
from tests.forecast import truth
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import SMALL, tokens
from tests.forecast.ways import AdamW

SAMPLES, LENGTH, SIZE = 4, 256, 2
BLOCKS, WIDTH = SMALL["num_hidden_layers"], SMALL["hidden_size"]


def blueprint(**more: Any) -> Blueprint:
    config = transformers.LlamaConfig(**{**SMALL, **more})
    return Blueprint(
        name="LlamaForCausalLM",
        build=lambda: transformers.LlamaForCausalLM(config),
        batch=tokens,
    )


def part(size: int, **more: Any) -> Blueprint:
    return part_of(blueprint(**more), ModelParallel(tensor=size))


def by_torch(mesh: DeviceMesh) -> nn.Module:
    """A rank's part as torchtitan makes it, with a loss of a part of the vocabulary."""
    model: Any = blueprint().build()
    plan: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(use_local_output=True),
        "lm_head": ColwiseParallel(input_layouts=Shard(1)),
    }
    gathered: dict[str, Any] = {"hidden_states": Replicate()}
    for number in range(BLOCKS):
        block = f"model.layers.{number}."
        plan |= {
            f"{block}input_layernorm": SequenceParallel(use_local_output=True),
            f"{block}post_attention_layernorm": SequenceParallel(use_local_output=True),
            f"{block}self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts=gathered,
                use_local_output=True,
            ),
            f"{block}mlp": PrepareModuleInput(
                input_layouts=(Shard(1),),
                desired_input_layouts=(Replicate(),),
                use_local_output=True,
            ),
        }
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            plan[block + name] = ColwiseParallel()
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            plan[block + name] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[block + name] = RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, plan)
    model.config.vocab_size //= SIZE
    made: nn.Module = model
    return made


def real(checkpointing: str) -> int:
    batch = {**tokens(SAMPLES, LENGTH), "position_ids": torch.arange(LENGTH)[None]}
    batch["labels"] %= SMALL["vocab_size"] // SIZE
    with apart(Sharding(ranks=SIZE)) as mesh:
        assert mesh is not None
        return truth.peak(lambda: by_torch(mesh), lambda: batch, AdamW, checkpointing=checkpointing)


def forecast(size: int, checkpointing: str = "none", **more: Any) -> Footprint:
    return footprint(
        part(size, **more).build,
        lambda: tokens(SAMPLES, LENGTH),
        AdamW,
        checkpointing=checkpointing,
    )


@pytest.mark.ward
def test_a_part_takes_what_torch_takes_for_it() -> None:
    """torch keeps the gathered inputs of each block's two halves and of the head; Megatron-LM, and
    so the forecast, their parts."""
    gathered = (2 * BLOCKS + 1) * SAMPLES * LENGTH * WIDTH * 4
    told = forecast(SIZE).total + gathered * (SIZE - 1) // SIZE
    assert told == pytest.approx(real("none"), rel=0.005)


@pytest.mark.ward
def test_a_part_that_recomputes_takes_what_torch_takes_for_it() -> None:
    assert forecast(SIZE, "every").total == pytest.approx(real("every"), rel=0.03)


def test_all_but_norms_is_divided() -> None:
    whole, half = (one.read("fp32", "adamw").parameters for one in (blueprint(), part(SIZE)))
    norms = (2 * BLOCKS + 1) * WIDTH
    assert half - norms == (whole - norms) / SIZE


def test_half_of_the_products_and_of_the_activations() -> None:
    whole, half = (forecast(size, num_hidden_layers=1) for size in (1, SIZE))
    assert half.flops == whole.flops / SIZE
    told, all_told = (one.peak.parts["Activation"] for one in (half, whole))
    assert told == pytest.approx(all_told / SIZE, rel=0.02)


def test_tied_weights_stay_tied_and_the_vocabulary_is_padded() -> None:
    model: Any = on_meta(part(4, vocab_size=2001, tie_word_embeddings=True).build)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert embedding.weight is head.weight
    assert head.weight.shape[0] == 501


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        ("GPT2Config", "GPT2LMHeadModel", "does not say how to divide GPT2Attention"),
        ("Phi3Config", "Phi3ForCausalLM", "as rowwise_split_input, which ddoctor cannot"),
    ],
)
def test_models_that_cannot_be_divided(config: str, kind: str, said: str) -> None:
    settings = getattr(transformers, config)(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0
    )
    one = Blueprint(name=kind, build=lambda: getattr(transformers, kind)(settings), batch=tokens)
    with pytest.raises(DoctorError, match=said):
        on_meta(part_of(one, ModelParallel(tensor=2)).build)
