"""One rank's part of a model under tensor and sequence parallelism, as Megatron-LM divides it.

transformers' own plan says which matrices are divided, and how. Between attention and MLP each rank
has its part of the sequence; it gathers the whole one before them, and the sum of their outputs is
scattered after them (arXiv 2205.05198). Tensors have the sizes of real ones, and not the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ddoctor.errors import DoctorError
from ddoctor.memory_tracking.blocks import blocks

DIVIDED: Mapping[str, int] = {"colwise": -2, "packed_colwise": -2, "rowwise": -1}
"""The divided dimension of a weight, by transformers' name of the style."""
WHOLE = ("moe_tp_experts", "replicated_with_grad_allreduce", "all_reduce", "replicate")


def divide(model: Any, size: int) -> None:
    """Keep one rank's part of each matrix, of the embedding and of the head.

    Raises:
        DoctorError: transformers has no plan for the model, or one with other styles.
    """
    part = _Part(model, size)
    for block in blocks(model):
        for child in block.children():
            if any(one.dim() > 1 for one in child.parameters()):
                part.divide(child)
                child.register_forward_pre_hook(partial(_whole, size), with_kwargs=True)
                child.register_forward_hook(partial(_parts, size))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for one in (embedding, head):
        part.narrow(one, "weight", 0)
    # The loss is of a part of the vocabulary, and sums over ranks (arXiv 1909.08053, section 3).
    model.config = copy(model.config)
    for owner in (model, model.config):  # some models take one, some the other
        if hasattr(owner, "vocab_size"):
            owner.vocab_size = head.weight.shape[0]
    head.register_forward_pre_hook(partial(_whole, size), with_kwargs=True)
    head.forward = MethodType(_column, head)


def scattered(size: int, whole: Tensor) -> Tensor:
    """Return this rank's part of a sequence; the backward pass gathers the gradient."""
    result: Tensor = _Scatter.apply(whole, size)  # type: ignore[no-untyped-call]
    return result


class _Part:
    """Divides each parameter once, also one that several modules share."""

    def __init__(self, model: Any, size: int) -> None:
        self._model, self._size = model, size
        self._plan: Mapping[str, str] = model.tp_plan
        self._names = {id(one): name for name, one in model.named_modules()}
        self._made: dict[int, nn.Parameter] = {}

    def divide(self, module: nn.Module) -> None:
        """Divide what the plan names in attention or an MLP."""
        found = sum(map(self._divide, module.modules()))
        if not found:
            kind, name = type(self._model).__name__, type(module).__name__
            raise DoctorError(f"--tp: transformers does not say how to divide {name} of {kind}")

    def _divide(self, owner: nn.Module) -> int:
        """Return the number of weights that the plan divides."""
        name = re.sub(r"(?<=\.)\d+(?=\.)", "*", self._names[id(owner)])
        if not isinstance(owner, nn.Linear):
            styles = {one: self._style(f"{name}.{one}") for one in owner._parameters}
            divided = {one: style for one, style in styles.items() if style in DIVIDED}
            for one, style in divided.items():
                self.narrow(owner, one, DIVIDED[style])
            return len(divided)
        style = self._style(name)
        if style not in DIVIDED:
            return 0
        self.narrow(owner, "weight", DIVIDED[style])
        if style != "rowwise":
            if owner.bias is not None:
                self.narrow(owner, "bias", 0)
            owner.forward = MethodType(_column, owner)  # type: ignore[method-assign]
        return 1

    def _style(self, name: str) -> str:
        style = self._plan.get(name, "")
        if style and style not in DIVIDED and style not in WHOLE:
            raise DoctorError(f"--tp: transformers divides {name} as {style}, which ddoctor cannot")
        return style

    def narrow(self, owner: nn.Module, name: str, dimension: int) -> None:
        """Keep a part of a parameter, padded as Megatron-LM pads vocabularies."""
        old: Any = getattr(owner, name)
        if id(old) not in self._made:
            shape = list(old.shape)
            shape[dimension] = -(-shape[dimension] // self._size)
            made = nn.Parameter(old.new_empty(shape), requires_grad=old.requires_grad)
            # The old one is kept with it, so that no other gets its id.
            made.whole = old  # type: ignore[attr-defined]
            self._made[id(old)] = made
        setattr(owner, name, self._made[id(old)])


def _whole(size: int, module: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Gather the whole sequence before a module."""
    part = given[0] if given else named["hidden_states"]
    if torch.is_autocast_enabled("cpu"):
        part = part.to(torch.get_autocast_dtype("cpu"))
    whole = _Gather.apply(part, size)  # type: ignore[no-untyped-call]
    whole.part = part
    if given:
        return (whole, *given[1:]), named
    return given, {**named, "hidden_states": whole}


def _parts(size: int, module: nn.Module, given: Any, made: Any) -> Any:
    """Scatter the sum of the outputs of a module."""
    if isinstance(made, tuple):
        return (scattered(size, made[0]), *made[1:])
    return scattered(size, made)


def _column(layer: nn.Linear, given: Tensor) -> Tensor:
    """Return the outputs of one rank; of the inputs, only its own part is kept."""
    part = getattr(given, "part", None)
    if part is None:
        return linear(given, layer.weight, layer.bias)
    bias: Any = layer.bias
    if bias is not None:
        bias = bias.to(given.dtype)
    product: Any = _ColumnProduct.apply
    made: Tensor = product(given, part, layer.weight.to(given.dtype), bias)
    return made


def _resized(given: Tensor, length: int) -> Tensor:
    return given.new_empty(given.shape[0], length, *given.shape[2:])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, size: int) -> Tensor:
        ctx.size = size
        return _resized(part, size * part.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return _resized(gradient, gradient.shape[1] // ctx.size), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, size: int) -> Tensor:
        ctx.size = size
        return _resized(whole, whole.shape[1] // size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return _resized(gradient, gradient.shape[1] * ctx.size), None


class _ColumnProduct(torch.autograd.Function):
    """A product that gathers its inputs again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, whole: Tensor, part: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(part, weight)
        ctx.length, ctx.biased = whole.shape[1], bias is not None
        return linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        part, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        whole = _resized(part, ctx.length).flatten(0, -2)
        return gradient @ weight, None, rows.T @ whole, rows.sum(0) if ctx.biased else None
