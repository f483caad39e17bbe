"""One rank's experts under expert parallelism.

With even routing, a rank gets as many tokens from others as it sends to them, and the sizes of all
activations stay the same (GShard, arXiv 2006.16668). With uneven routing, the experts of the
busiest rank get more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn


def divide_experts(model: nn.Module, size: int, load: float = 1.0) -> None:
    """Keep one of ``size`` parts of each block's experts.

    ``load``: the tokens that they get, as many times as with even routing.
    """
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
        if load > 1:
            forward: Any = _busier(module.forward, load)
            module.forward = forward


def _busier(forward: Callable[..., Tensor], load: float) -> Callable[..., Tensor]:
    """Return the forward pass of experts with more tokens, of which those of before return."""

    @wraps(forward)
    def run(*args: Tensor, **kwargs: Tensor) -> Tensor:
        tokens = len(next(iter([*args, *kwargs.values()])))
        # What is received is a copy, as the rows of another rank's tokens are.
        rows = torch.arange(ceil(load * tokens)) % tokens
        received = [one.index_select(0, rows) for one in args]
        named = {name: one.index_select(0, rows) for name, one in kwargs.items()}
        return forward(*received, **named)[:tokens]

    return run
