"""Activation checkpointing with torch's own functions."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ddoctor.evidence.plan import Checkpointing
from ddoctor.memory_tracking.blocks import blocks

aten = torch.ops.aten
ATTENTION = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
KEPT = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    *ATTENTION,
]
# torchtitan, distributed/activation_checkpoint.py, the option "op": of these, every second product
# is recomputed; of layers with a bias, all are.
KEPT_BY_OP = frozenset((aten.mm.default, *ATTENTION))


def every(which: Checkpointing) -> int:
    """Return of how many blocks one has its own way of checkpointing."""
    policy = which.partition(":")[2]
    return int(policy) if policy.isdecimal() else 1


def recompute(model: nn.Module, which: Checkpointing, *, compiled: bool = False) -> None:
    """Make blocks recompute their activations in the backward pass.

    ``compiled``: their forward pass is, and runs twice, so that the checkpoint is around it.
    """
    if which == "none":
        return
    policy = which.partition(":")[2]
    # Random number generators have no state on fake tensors.
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if policy == "op":
        settings["context_fn"] = _every_second
    elif which == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
    is_known = getattr(model, "supports_gradient_checkpointing", False)
    if is_known:
        # Recomputation would fill a cache of keys and values a second time.
        without_cache(model)
    if is_known and not policy.isdecimal() and not compiled:
        enable: Any = getattr(model, "activation_checkpointing_enable", None)
        if enable is None:  # before 5.0
            enable = model.gradient_checkpointing_enable
        enable(settings)
        return
    step = every(which)
    chosen = {id(one) for one in blocks(model)[step - 1 :: step]}
    apply_activation_checkpointing(
        model,
        partial(checkpoint_wrapper, checkpoint_fn=partial(checkpoint, **settings)),
        check_fn=lambda one: id(one) in chosen,
    )


def without_cache(model: nn.Module) -> None:
    """Switch off the cache of keys and values of a model of transformers.

    A decoder has its own config.
    """
    for one in model.modules():
        if hasattr(getattr(one, "config", None), "use_cache"):
            one.config.use_cache = False  # type: ignore[union-attr]


def _every_second() -> Any:
    """Return the contexts of one block in which every second product is recomputed."""
    products = Counter[bool]()

    def kept(context: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if function is aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        found = function in KEPT_BY_OP
        return CheckpointPolicy.MUST_SAVE if found else CheckpointPolicy.PREFER_RECOMPUTE

    contexts: Any = create_selective_checkpoint_contexts
    return contexts(kept)
