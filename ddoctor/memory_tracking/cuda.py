"""The outputs and saved tensors of CUDA kernels, for CPU operators on fake tensors.

A torch build without CUDA has no autograd of fake CUDA tensors. So during a step, the operators
that differ behave as in torch's CUDA build:

- attention: by the GPU kernels, which save the sum of each row and draw dropout again in the
  backward pass; only flash attention accepts fewer key heads than query heads, so not in fp32
  (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.13);
- dropout: its mask has one byte per element (aten/src/ATen/native/Dropout.cpp);
- autocast: some operators compute in fp32 (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32).

Not modelled: cuDNN workspaces, partial sums of reductions, and compiled kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
# Alignment of each head in bytes (sdp_utils.cpp, minimum_gemm_alignment); flash attention pads to
# it, and accepts heads up to this size (check_head_dim_size_flash).
ALIGNED, LONGEST_FLASH = 16, 256
# The operators of AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE whose output has the input's
# size, and which autocast leaves in half precision on a CPU.
IN_FLOATS = (
    aten.exp.default,
    aten.log.default,
    aten.reciprocal.default,
    aten.rsqrt.default,
    aten.pow.Tensor_Scalar,
    aten.pow.Tensor_Tensor,
    aten.pow.Scalar,
    aten.softplus.default,
    aten.layer_norm.default,
    aten.rms_norm.default,
    aten.group_norm.default,
    aten.softmax.int,
    aten.log_softmax.int,
    aten.cumsum.default,
)


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Replace these operators in the whole process."""
    library: Any = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        for one in IN_FLOATS:
            library.impl(one, _in_floats(one), "AutocastCPU")
        yield
    finally:
        library._destroy()


def own(func: Any, args: Any) -> int:
    """Return the bytes that a call needs besides its outputs; 0 except for attention.

    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd: the gradient of the
    queries is summed in fp32, and those of keys and values for each query head.
    """
    if func is not aten._scaled_dot_product_flash_attention_backward.default:
        return 0
    _, query, key = args[:3]
    expanded = 0 if key.shape[1] == query.shape[1] else 2 * query.shape[1] // key.shape[1]
    return int(torch.float32.itemsize * query.numel() + expanded * key.nbytes)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute by flash attention, else memory-efficient attention, else matrix products."""
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        closed = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = closed.masked_fill_(attn_mask.logical_not(), float("-inf"))
    made: tuple[Tensor, ...]
    whole = (query, key, value)
    sizes = {one.shape[-1] for one in whole}
    heads = all(one.dim() == 4 for one in whole)
    if (
        heads
        and attn_mask is None
        and query.dtype in HALVES
        and len(sizes) == 1
        and max(sizes) <= LONGEST_FLASH
    ):
        made = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
    elif (
        heads
        and len({one.shape[1] for one in whole}) == 1
        and all(size * query.itemsize % ALIGNED == 0 for size in sizes)
    ):
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
        learns = any(one.requires_grad for one in whole)
        made = aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, learns, dropout_p, is_causal, scale=scale
        )
    else:
        made = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return made[0]


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if train and 0 < p < 1 and input.numel():
        made, _ = torch.native_dropout(input, p, train)
        return made
    whole: Tensor = aten.dropout.default.decompose(input, p, train)
    return whole


def _in_floats(operator: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        wide, named = tree_map_only(
            Tensor, lambda one: one.float() if one.dtype in HALVES else one, (args, kwargs)
        )
        with torch.autocast("cpu", enabled=False):
            return operator(*wide, **named)

    return run
