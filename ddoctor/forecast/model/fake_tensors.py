"""A model on tensors that take no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Made = TypeVar("Made", bound=Tensor)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Built without weights, however large it is.

    On the meta device, not on fake tensors: code that builds a model reads single values of what it
    makes on the CPU (a schedule of drop rates), which fake tensors have not.
    """
    with torch.device("meta"):
        return build().train()


def as_fake(model: nn.Module) -> nn.Module:
    """The same with fake tensors of the CPU, under a FakeTensorMode; what was shared stays so."""
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def new(old: Tensor) -> Tensor:
        if id(old) not in made:
            empty = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device="cpu")
            if isinstance(old, nn.Parameter):
                empty = nn.Parameter(empty, requires_grad=old.requires_grad)
            # The old one is kept, so that no other gets its id.
            made[id(old)] = empty, old
        return made[id(old)][0]

    for module in model.modules():
        for owned in (module._parameters, module._buffers):
            for name, old in owned.items():
                if old is not None:
                    owned[name] = new(old)  # type: ignore[assignment]
    return model
