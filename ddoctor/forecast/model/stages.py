"""The first and the last stage of a model under pipeline parallelism.

The first has the embedding, the last the head and the loss. A stage receives activations and sends
their gradients back.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.outcome import Outcome
from ddoctor.memory_tracking.blocks import rows

Stage = Literal["first", "last"]
STAGES: tuple[Stage, ...] = ("first", "last")
EMBEDDING, BLOCKS = "embed_tokens", "layers"
"""transformers' names in its plans of pipelines."""


def keep_stage(model: Any, stage: Stage, stages: int) -> None:
    """Keep the modules of one stage.

    Raises:
        DoctorError: transformers has no plan for pipelines of the model.
    """
    names = getattr(model.config, "base_model_pp_plan", None) or {}
    if BLOCKS not in names or EMBEDDING not in names:
        raise DoctorError(f"--pp: transformers has no pipeline plan for {type(model).__name__}")
    row = getattr(model.base_model, BLOCKS)
    number = len(row) // stages
    if stage == "first":
        del row[number:]
        for name in set(names) - {EMBEDDING, BLOCKS}:
            setattr(model.base_model, name, nn.Identity())
        _remove_head(model)
        return
    del row[: len(row) - number]
    embedding = model.get_input_embeddings()
    model.set_input_embeddings(_Received(embedding.weight))


def enter(model: nn.Module, change: Any) -> None:
    """Change what the first block gets, before activation checkpointing keeps it."""
    (row,) = rows(model)
    kind: Any = type(row[0])

    class Entered(kind):  # type: ignore[misc]
        def __call__(self, hidden: Tensor, *given: Any, **named: Any) -> Any:
            return super().__call__(change(hidden) if self is row[0] else hidden, *given, **named)

    for block in row:
        block.__class__ = Entered


def received(size: int, hidden: Tensor) -> Tensor:
    """Return activations from another stage, of which a rank gets one of ``size`` parts."""
    batch, length, width = hidden.shape
    return hidden.new_empty(batch, length // size, width).requires_grad_()


class _Received(nn.Module):
    """Has the shape of the embedding's output, and no memory."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._width, self._dtype = weight.shape[1], weight.dtype

    def forward(self, tokens: Tensor) -> Tensor:
        """Return what the first block's ``received`` replaces."""
        return torch.empty(1, 1, 1, dtype=self._dtype).expand(*tokens.shape, self._width)


def _remove_head(model: Any) -> None:
    head, inner = model.get_output_embeddings(), model.base_model
    for owner in model.modules():
        for name, child in list(owner.named_children()):
            if child is head:
                delattr(owner, name)

    def forward(self: nn.Module, labels: Tensor, **inputs: Any) -> Outcome:
        sent: Any = _Sent.apply
        return Outcome(sent(inner(**inputs)[0]))

    model.forward = MethodType(forward, model)


class _Sent(torch.autograd.Function):
    """The end of a stage: the next one sends the gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = hidden.shape, hidden.dtype
        return hidden.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].new_empty(ctx.shape, dtype=ctx.dtype)
