"""The part of a model that one GPU has under model parallelism, as a blueprint to forecast."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import ModelParallel
from ddoctor.forecast.model.blueprint import Batch, Blueprint, on_meta
from ddoctor.forecast.model.experts import divide_experts
from ddoctor.forecast.model.stages import Stage, enter, keep_stage, received
from ddoctor.forecast.model.tensor import divide, scattered
from ddoctor.forecast.model_parallel import Dimensions
from ddoctor.memory_tracking.blocks import rows

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def part_of(blueprint: Blueprint, parallel: ModelParallel, stage: Stage | None = None) -> Blueprint:
    """Return the blueprint of one GPU's part; ``stage``: of a pipeline, or None."""
    size = parallel.tensor

    def build() -> Any:
        model: Any = blueprint.build()
        if parallel.expert > 1:
            divide_experts(model, parallel.expert, parallel.expert_load)
        if size > 1:
            divide(model, size)
        if stage is not None:
            keep_stage(model, stage, parallel.pipeline)
        if stage == "last":
            enter(model, partial(received, size))
        elif size > 1:
            enter(model, partial(scattered, size))
        return model

    def batch(samples: int, length: int) -> Batch:
        return blueprint.batch(samples, length // parallel.context)

    return replace(blueprint, build=build, batch=batch)


def dimensions(blueprint: Blueprint) -> Dimensions:
    """Return the sizes of a model of transformers.

    Raises:
        DoctorError: it is no causal language model with one row of blocks.
    """
    model: Any = on_meta(blueprint.build)
    found = list(rows(model))
    head: Any = getattr(model, "get_output_embeddings", lambda: None)
    if len(found) != 1 or head() is None or model.base_model is model:
        raise DoctorError(
            f"--tp, --pp, --cp and --ep go with causal language models, and {blueprint.name} is "
            "none"
        )
    config = model.config.get_text_config()
    if config._attn_implementation == "eager":
        raise DoctorError("--tp, --pp, --cp and --ep go with --attention sdpa or flash")
    heads = config.num_attention_heads
    counts = (getattr(config, name, None) for name in EXPERTS)
    return Dimensions(
        hidden=config.hidden_size,
        heads=heads,
        key_heads=getattr(config, "num_key_value_heads", None) or heads,
        head=getattr(config, "head_dim", None) or config.hidden_size // heads,
        blocks=len(found[0]),
        experts=next((one for one in counts if one), 0),
        chosen=getattr(config, "num_experts_per_tok", None) or 0,
    )
