"""Low-rank adapters (LoRA) on a model of transformers, and base weights in 4 bits (QLoRA).

The modules take what those of PEFT (tuners/lora/layer.py, dora.py) and bitsandbytes (nn/modules.py,
autograd/_functions.py, MatMul4Bit) take, and need neither. Their tensors have the sizes of real
ones, and not the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ddoctor.errors import DoctorError
from ddoctor.forecast.options import Lora, Quantized

BLOCK = 64
"""Weights with one scale, of 4 bytes each."""
SCALES = 256
"""Scales, of 1 byte each then, with one scale of 4 bytes: double quantization."""


def adapt(model: nn.Module, lora: Lora, quantized: Quantized | None) -> nn.Module:
    """Freeze the model, give linear layers adapters, and all of them weights in 4 bits if wanted.

    The layer that makes the logits stays unchanged.

    Raises:
        DoctorError: it has no layer of these names.
    """
    outputs: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = outputs()
    found = [one for one in _linear(model) if one[2] is not head]
    if not any(lora.covers(name) for name, *_ in found):
        names = sorted({name.rpartition(".")[2] for name, *_ in found})
        raise DoctorError(f"--lora: no linear layer has these names; there are {', '.join(names)}")
    model.requires_grad_(requires_grad=False)
    for name, owner, layer in found:
        base = layer if quantized is None else InFourBits(layer, quantized)
        if lora.covers(name):
            base = Adapted(base, *_sizes(layer), lora)
        setattr(owner, name.rpartition(".")[2], base)
    return model


def halve(model: nn.Module) -> nn.Module:
    """Give the model weights in bfloat16, but for adapters that stay in float32."""
    model.to(torch.bfloat16)
    for one in model.modules():
        if isinstance(one, Adapted) and one.full:
            # The frozen layer is no part of it.
            base, one.base = one.base, None
            one.float().base = base
    return model


def hidden(model: nn.Module) -> int:
    """Return the weights in 4 bits that are not counted as elements of their tensors."""
    layers = (one for one in model.modules() if isinstance(one, InFourBits))
    return sum(one.shape.numel() - one.packed.numel() for one in layers)


def _linear(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    """Yield the name, the owner and the module of each linear layer."""
    for place, owner in list(model.named_modules()):
        for name, layer in owner.named_children():
            # Conv1D of transformers (GPT-2) is a linear layer with its weight transposed.
            if isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D":
                yield f"{place}.{name}".lstrip("."), owner, layer


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """Return the numbers of inputs and outputs."""
    weight: Any = layer.weight
    return tuple(reversed(weight.shape)) if isinstance(layer, nn.Linear) else tuple(weight.shape)


class Adapted(nn.Module):
    """A frozen linear layer and the product of two narrow ones, which is added to it."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, lora: Lora) -> None:
        super().__init__()
        self.base: Any = base
        self.full = lora.full
        self.down = nn.Linear(inputs, lora.rank, bias=False)
        self.up = nn.Linear(lora.rank, outputs, bias=False)
        # DoRA: the length of each row of the weight is trained apart from its direction.
        self.magnitude = nn.Parameter(torch.empty(outputs)) if lora.dora else None

    @property
    def weight(self) -> Any:
        """The frozen weight, which some models look at."""
        return self.base.weight

    def forward(self, given: Tensor) -> Tensor:
        """Return the outputs in the dtype of the frozen layer's."""
        result: Tensor = self.base(given)
        given = given.to(self.down.weight.dtype)
        if self.magnitude is None:
            adapted: Tensor = result + self.up(self.down(given)) * 2.0
            return adapted.to(result.dtype)
        rows = torch.eye(given.shape[-1], dtype=given.dtype, device=given.device)
        change = self.up(self.down(rows)).T.detach()
        whole = self._whole().to(given.dtype)
        length = torch.linalg.norm(whole + 2.0 * change, dim=1).detach()
        scale = (self.magnitude / length).view(1, -1)
        own: Tensor = (scale - 1) * result + scale * self.up(self.down(given)) * 2.0
        return (result + own).to(result.dtype)

    def _whole(self) -> Tensor:
        if isinstance(self.base, InFourBits):
            return self.base.packed.new_empty(self.base.shape)
        weight: Tensor = self.base.weight
        return weight if isinstance(self.base, nn.Linear) else weight.T


class InFourBits(nn.Module):
    """A frozen linear layer whose weight is kept in 4 bits and computed with in bfloat16."""

    def __init__(self, layer: nn.Module, quantized: Quantized) -> None:
        super().__init__()
        inputs, outputs = _sizes(layer)
        self.shape = torch.Size((outputs, inputs))
        count = self.shape.numel()
        # As elements that FSDP can spread (bnb_4bit_quant_storage).
        storage = torch.empty(-(-count // 4), dtype=torch.bfloat16)
        self.packed = nn.Parameter(storage, requires_grad=False)
        blocks = -(-count // BLOCK)
        scales = 4 * blocks if quantized == "nf4" else blocks + 4 * -(-blocks // SCALES)
        self.register_buffer("scales", torch.empty(scales, dtype=torch.uint8))
        self.bias: Any = layer.bias

    @property
    def weight(self) -> nn.Parameter:
        """The packed weight."""
        return self.packed

    def forward(self, given: Tensor) -> Tensor:
        """Return the outputs in the dtype of the inputs."""
        product: Any = _FourBitProduct.apply
        found: Tensor = product(given.to(torch.bfloat16), self.packed, self.shape)
        if self.bias is not None:
            found = found + self.bias.to(found.dtype)
        return found.to(given.dtype)


class _FourBitProduct(torch.autograd.Function):
    """A product whose inputs are not kept: the weight is unpacked in both passes."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, packed: Tensor, shape: torch.Size) -> Tensor:
        ctx.packed, ctx.shape = packed, shape
        return linear(given, given.new_empty(shape))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return gradient @ gradient.new_empty(ctx.shape), None, None
