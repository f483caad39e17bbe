"""A model on meta or fake tensors, which take no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Made = TypeVar("Made", bound=Tensor)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model without weights, however large it is.

    It is on the meta device, not on fake tensors: code that builds a model reads single values of
    CPU tensors (a schedule of drop rates), and fake tensors have no values.
    """
    with torch.device("meta"):
        return build().train()


def as_fake(model: nn.Module) -> nn.Module:
    """Return the model with fake CPU tensors, in a FakeTensorMode; shared tensors stay shared."""
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def new(old: Tensor) -> Tensor:
        if id(old) not in made:
            empty = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device="cpu")
            if isinstance(old, nn.Parameter):
                empty = nn.Parameter(empty, requires_grad=old.requires_grad)
            # The old tensor is kept, so that no other one gets its id.
            made[id(old)] = empty, old
        return made[id(old)][0]

    for module in model.modules():
        for owned in (module._parameters, module._buffers):
            for name, old in owned.items():
                if old is not None:
                    owned[name] = new(old)  # type: ignore[assignment]
    return model
