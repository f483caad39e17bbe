"""What CUDA's kernels keep and return where the CPU's do otherwise, on fake tensors of the CPU.

torch builds without CUDA have no autograd of fake tensors on it. So for the time of a step the
operators that differ are taken as torch's CUDA build takes them:

- attention: by the kernels for GPUs, which keep the sum of each row, and draw dropout again in the
  backward pass; fewer heads of keys than of queries only flash attention takes, so not in floats
  (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.13);
- dropout: its mask is of one byte a number (aten/src/ATen/native/Dropout.cpp);
- autocast: some operators compute in floats (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32).

Not modelled: workspaces of cuDNN, partial sums of reductions, and kernels that are compiled.
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
# Of each head, in bytes (sdp_utils.cpp, minimum_gemm_alignment); flash attention fills them up, and
# takes so many numbers (check_head_dim_size_flash).
ALIGNED, LONGEST_FLASH = 16, 256
# Of AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE what returns as many numbers as it takes, and
# autocast leaves in halves on a CPU.
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
    """Take these operators so, in all of this process."""
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
    """Bytes that a call has beside what it returns; 0 of others than attention.

    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd: the gradient of the
    queries is summed in floats, and those of keys and values for each head of the queries.
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
    """By flash attention, else by memory-efficient attention, else by products of matrices."""
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
        wide = tree_map_only(Tensor, _wide, (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return operator(*wide[0], **wide[1])

    return run


def _wide(one: Tensor) -> Tensor:
    return one.float() if one.dtype in HALVES else one
