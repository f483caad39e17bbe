"""The memory of keys and values while a model of transformers generates."""

from __future__ import annotations

from typing import Any


def cached(config: Any) -> int | None:
    """Return the numbers that the cache keeps of one token; None: the config does not say.

    layers × 2 × key-value heads × head dimension; with latent attention (DeepSeek), layers × (rank
    of the latent vector + dimensions that positions rotate), as transformers caches since 5.0. It
    counts layers with a sliding window as if they kept all tokens.
    """
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    width = getattr(config, "hidden_size", None)
    if not (layers and heads and width):
        return None
    if latent := getattr(config, "kv_lora_rank", None):
        return int(layers * (latent + config.qk_rope_head_dim))
    kept = getattr(config, "num_key_value_heads", None) or heads
    return int(layers * 2 * kept * (getattr(config, "head_dim", None) or width // heads))
