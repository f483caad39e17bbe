"""The FLOPs of attention whose key heads are fewer than its query heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddoctor.memory_tracking.tracker import FORMULAS

aten: Any = torch.ops.aten
SAMPLES, HEADS, TOKENS, WIDTH = 2, 8, 64, 16


@pytest.mark.parametrize("keys", [8, 2, 1])
def test_each_query_head_counts(keys: int) -> None:
    query = torch.empty(SAMPLES, HEADS, TOKENS, WIDTH)
    shared = torch.empty(SAMPLES, keys, TOKENS, WIDTH)
    product = 2 * SAMPLES * HEADS * TOKENS * TOKENS * WIDTH
    forward = FORMULAS[aten._scaled_dot_product_flash_attention]
    assert forward(query, shared, shared, out_val=query) == 2 * product
    backward = FORMULAS[aten._scaled_dot_product_flash_attention_backward]
    sums = torch.empty(SAMPLES, HEADS, TOKENS)
    assert backward(query, query, shared, shared, query, sums, out_val=query) == 5 * product
