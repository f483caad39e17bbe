"""torch's grouped product of matrices, by which experts compute, on tensors without data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# torch has it since 2.8.
PACKET: Any = getattr(torch.ops.aten, "_grouped_mm", None)
GROUPED: Any = getattr(PACKET, "default", None)


def without_data(a: Tensor, b: Tensor, *how: Any, **more: Any) -> Tensor:
    """As ``GROUPED``, whose shapes torch 2.13 tells of bfloat16 alone; its kernels take more.

    Its shapes are the same wherever the tokens go: they are sorted by expert, and each has its
    rows of one tensor.
    """
    made: Tensor = GROUPED(a.to(torch.bfloat16), b.to(torch.bfloat16), *how, **more)
    return made.to(a.dtype)


def flops(a: Tensor, b: Tensor, *how: Any, **more: Any) -> int:
    """Of all groups: each row, and in the gradient of the weights each column, is of one."""
    return 2 * a.shape[-2] * a.shape[-1] * b.shape[-1]
