"""Activation checkpointing with torch's own functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ddoctor.evidence.plan import Checkpointing
from ddoctor.memory_tracking.blocks import blocks

aten = torch.ops.aten
KEPT = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
]


def recompute(model: nn.Module, which: Checkpointing) -> None:
    """Make each block recompute its activations in the backward pass."""
    if which == "none":
        return
    # Random number generators have no state on fake tensors.
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if which == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
    if getattr(model, "supports_gradient_checkpointing", False):
        # transformers: recomputation would fill a cache of keys and values a second time.
        model.config.use_cache = False  # type: ignore[union-attr]
        enable: Any = getattr(model, "activation_checkpointing_enable", None)
        if enable is None:  # before 5.0
            enable = model.gradient_checkpointing_enable
        enable(settings)
        return
    chosen = set(map(id, blocks(model)))
    apply_activation_checkpointing(
        model,
        partial(checkpoint_wrapper, checkpoint_fn=partial(checkpoint, **settings)),
        check_fn=lambda one: id(one) in chosen,
    )
