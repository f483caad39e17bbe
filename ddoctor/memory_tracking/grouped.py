"""torch's grouped matrix product, which experts use, on tensors without data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# torch has it since 2.8.
PACKET: Any = getattr(torch.ops.aten, "_grouped_mm", None)
GROUPED: Any = getattr(PACKET, "default", None)


def without_data(a: Tensor, b: Tensor, *how: Any, **more: Any) -> Tensor:
    """Return the shape of ``GROUPED``, which torch 2.13 has for bfloat16 only, unlike its kernels.

    The shapes do not depend on the routing: tokens are sorted by expert, and each expert has its
    rows of one tensor.
    """
    made: Tensor = GROUPED(a.to(torch.bfloat16), b.to(torch.bfloat16), *how, **more)
    return made.to(a.dtype)


def flops(a: Tensor, b: Tensor, *how: Any, **more: Any) -> int:
    """Return the FLOPs of all groups: each row (or column, for the weights' gradient) is in one."""
    return 2 * a.shape[-2] * a.shape[-1] * b.shape[-1]
