"""Optimizers by their names in a plan, with the memory that they take on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddoctor.forecast import options

Factory = Callable[[list[nn.Parameter]], Optimizer]
# bitsandbytes/optim/optimizer.py: smaller tensors keep fp32 (min_8bit_size); of others, each
# block of 256 has a scale.
LEAST_OF_8_BITS, BLOCK = 4096, 256


class InPlace(Optimizer):
    """An optimizer that updates parameters and states in place, and needs no other memory."""

    def __init__(self, parameters: Iterable[nn.Parameter], make: Callable[[Tensor], Any]) -> None:
        super().__init__(parameters, {})
        self._make = make

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Create the states the first time; compute nothing."""
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None and not self.state[one]:
                    self.state[one].update(self._make(one))


def _floats(parameter: Tensor) -> dict[str, Tensor]:
    like = partial(torch.zeros_like, parameter, dtype=torch.float32)
    return {"exp_avg": like(), "exp_avg_sq": like()}


def _bytes(parameter: Tensor) -> dict[str, Tensor]:
    if parameter.numel() < LEAST_OF_8_BITS:
        return _floats(parameter)
    states = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("1", "2")}
    blocks = -(-parameter.numel() // BLOCK)
    return states | {f"scale {name}": torch.zeros(blocks) for name in ("1", "2")}


FACTORIES: Mapping[options.Optimizer, Factory] = {
    "adamw": partial(torch.optim.AdamW, lr=1e-4, foreach=True),
    "adamw-fp32": partial(InPlace, make=_floats),
    "adamw-8bit": partial(InPlace, make=_bytes),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    "adafactor": partial(torch.optim.Adafactor, lr=1e-2),
}
"""The optimizers as on CUDA, where a step updates all parameters at once (foreach)."""
