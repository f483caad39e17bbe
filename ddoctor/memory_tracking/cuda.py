"""The outputs and saved tensors of CUDA kernels, for CPU operators on fake tensors.

A torch build without CUDA has no autograd of fake CUDA tensors. So during a step, the operators
that differ behave as in torch's CUDA build:

- attention: by the GPU kernels, which save the sum of each row and draw dropout again in the
  backward pass; only flash attention accepts fewer key heads than query heads, so not in fp32
  (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, torch 2.13);
- dropout: its mask has one byte per element (aten/src/ATen/native/Dropout.cpp);
- softmax of half precision in fp32: one kernel, and one for the gradient, without a copy of the
  input (aten/src/ATen/native/SoftMax.cpp; of bfloat16, too: measured with torch 2.11 on an H100);
- autocast: some operators compute in fp32 (aten/src/ATen/autocast_mode.h, AT_FORALL_FP32).

Not modelled: cuDNN workspaces, partial sums of reductions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._pytree import tree_map_only

from ddoctor.memory_tracking import replacements

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
    aten.cumsum.default,
)

SOFTMAX = {
    aten.softmax.int: (aten._softmax, aten._softmax_backward_data),
    aten.log_softmax.int: (aten._log_softmax, aten._log_softmax_backward_data),
}
"""The kernels of each: forward and backward."""


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Replace these operators in the whole process."""
    library: Any = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        for one in SOFTMAX:
            library.impl(one, _softmax(one), "AutogradCPU")
            library.impl(one, _softmax_in_floats(one), "AutocastCPU")
        # On a CPU all of it computes in fp32, on a GPU its softmax.
        with catch_warnings():
            # torch warns of the first kernel that replaces one of its own.
            simplefilter("ignore")
            library.impl(aten.cross_entropy_loss.default, _cross_entropy, "AutocastCPU")
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
    # check_last_dim_stride_equals_1_dense: the mask, too. Position biases are often permuted.
    fused = all(one.dim() == 4 and one.stride(-1) == 1 for one in whole) and (
        attn_mask is None or attn_mask.stride(-1) == 1
    )
    if (
        fused
        and attn_mask is None
        and query.dtype in HALVES
        and len(sizes) == 1
        and max(sizes) <= LONGEST_FLASH
    ):
        made = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
    elif (
        fused
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


class _HalfToFloat(torch.autograd.Function):
    """Softmax of half precision, whose result is in fp32.

    Fake tensors know it of float16 only, which is as large as bfloat16.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, dim: int, operator: Any) -> Tensor:
        ctx.dim, ctx.operator, ctx.dtype = dim, operator, given.dtype
        made: Tensor = SOFTMAX[operator][0](given.view(torch.float16), dim, True)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (made,) = ctx.saved_tensors
        found = SOFTMAX[ctx.operator][1](*gradients, made, ctx.dim, torch.float16)
        return found.view(ctx.dtype), None, None


def _softmax(operator: Any) -> Any:
    def run(given: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if dtype is torch.float32 and given.dtype in HALVES:
            return _HalfToFloat.apply(given, dim, operator)  # type: ignore[no-any-return, no-untyped-call]
        whole: Tensor = operator.decompose(given, dim, dtype)
        return whole

    return run


def _cross_entropy(
    given: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = replacements.MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    if label_smoothing or target.is_floating_point():
        return _in_floats(aten.cross_entropy_loss.default)(
            given, target, weight, reduction, ignore_index, label_smoothing
        )
    logarithms = aten.log_softmax.int(given, min(1, given.dim() - 1))
    return aten.nll_loss_nd(logarithms, target, weight, reduction, ignore_index)


def _softmax_in_floats(operator: Any) -> Any:
    def run(given: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        with torch.autocast("cpu", enabled=False):
            return operator(given, dim, dtype or (torch.float32 if given.dtype in HALVES else None))

    return run
