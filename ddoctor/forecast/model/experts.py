"""One rank's experts under expert parallelism.

Routing is taken as even: a rank gets as many tokens from others as it sends to them, so that the
sizes of all activations stay as they are (GShard, arXiv 2006.16668).
"""

from __future__ import annotations

from typing import Any

from torch import nn


def divide_experts(model: nn.Module, size: int) -> None:
    """Keep one of ``size`` parts of each block's experts."""
    for module in model.modules():
        count: Any = getattr(module, "num_experts", None)
        own = [
            (name, one)
            for name, one in module._parameters.items()
            if one is not None and one.shape[:1] == (count,)
        ]
        # A router has a row for each expert, and experts have a matrix.
        if not any(one.dim() == 3 for _, one in own):
            continue
        for name, one in own:
            made = one.new_empty(count // size, *one.shape[1:])
            setattr(module, name, nn.Parameter(made, requires_grad=one.requires_grad))
        module.num_experts = count // size
