"""Operators that fake tensors lack, or implement differently.

- torch's grouped matrix product, which experts use;
- losses between images, whose output is one number: they keep memory of the size of their inputs as
  long as they exist, on every device (meta functions in aten/src/ATen/native/Loss.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
# torch has it since 2.8.
GROUPED: Any = getattr(aten, "_grouped_mm", None)
# torch's number for the reduction (torch/nn/_reduction.py).
NONE, MEAN = 0, 1


def _grouped(a: Tensor, b: Tensor, *how: Any, **more: Any) -> Tensor:
    """Return the shape of ``GROUPED``, which torch 2.13 has for bfloat16 only, unlike its kernels.

    The shapes do not depend on the routing: tokens are sorted by expert, and each expert has its
    rows of one tensor.
    """
    made: Tensor = GROUPED.default(a.to(torch.bfloat16), b.to(torch.bfloat16), *how, **more)
    return made.to(a.dtype)


def grouped_flops(a: Tensor, b: Tensor, *how: Any, **more: Any) -> int:
    """Return the FLOPs of all groups: each row (or column, for the weights' gradient) is in one."""
    return 2 * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _loss(
    loss: Any, inputs: Tensor, targets: Tensor, reduction: int = MEAN, *how: Any, **more: Any
) -> Tensor:
    """Compute ``loss``: allocate as much as its inputs, then return one number."""
    if reduction == NONE:
        made: Tensor = loss(inputs, targets, reduction, *how, **more)
        return made
    return torch.empty_like(inputs).resize_(())


LOSSES: Mapping[Any, Callable[..., Tensor]] = {
    loss: partial(_loss, loss) for loss in (aten.mse_loss.default, aten.smooth_l1_loss.default)
}
REPLACED: Mapping[Any, Callable[..., Tensor]] = {
    getattr(GROUPED, "default", None): _grouped,
    **LOSSES,
}
"""The function that computes instead of each operator."""


def own(func: Any, args: Sequence[Any]) -> int:
    """Return the bytes that a loss needs besides its output: the differences that it sums."""
    if func not in LOSSES:
        return 0
    inputs, _, reduction, *_ = (*args, MEAN)
    return int(inputs.nbytes) if reduction != NONE else 0
