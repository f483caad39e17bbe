"""Losses of language models that hold fewer copies of their logits, or never all of them."""

from __future__ import annotations

import re
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.outcome import Outcome

CHUNKED = re.compile(r"chunked:(\d+)")


def replace_loss(model: nn.Module, loss: str) -> nn.Module:
    """Give a causal language model of transformers another loss.

    ``fused``, ``compiled``, or ``chunked:N``.

    Raises:
        DoctorError: it has no linear layer that makes logits of its hidden states.
    """
    outputs: Any = getattr(model, "get_output_embeddings", lambda: None)
    head, inner = outputs(), getattr(model, "base_model", None)
    if not isinstance(head, nn.Linear) or inner in (None, model):
        raise DoctorError(
            f"--loss {loss} goes with causal language models, and {type(model).__name__} is none"
        )
    chunks = CHUNKED.fullmatch(loss)
    plain = model.forward

    def forward(self: nn.Module, labels: Tensor, **inputs: Any) -> Any:
        if loss == "fused" and not self.training:
            # transformers/monkey_patch of Liger: an evaluation needs the logits.
            return plain(labels=labels, **inputs)
        hidden: Tensor = inner(**inputs)[0]
        if chunks is not None:
            return Outcome(loss=_in_chunks(head, hidden, labels, int(chunks[1])))
        rows = hidden.flatten(0, 1)
        fused: Any = _Fused.apply
        compiled: Any = _Compiled.apply
        if loss == "compiled":
            return Outcome(loss=compiled(head(rows), labels.flatten()))
        return Outcome(loss=fused(rows, head.weight, labels.flatten()))

    model.forward = MethodType(forward, model)
    return model


def _in_chunks(head: nn.Linear, hidden: Tensor, labels: Tensor, number: int) -> Tensor:
    """Return torchtune's loss (modules/loss/ce_chunked_output_loss.py): the logits of all chunks
    stay in the computing dtype, and each chunk is cast to float32 alone."""
    logits = [head(one) for one in hidden.tensor_split(number, dim=1)]
    parts = zip(logits, labels.tensor_split(number, dim=1), strict=True)
    losses = [
        cross_entropy(one.flatten(0, 1).float(), wanted.flatten(), reduction="sum")
        for one, wanted in parts
    ]
    return torch.stack(losses).sum() / labels.numel()


class _Fused(torch.autograd.Function):
    """Liger's loss (ops/fused_linear_cross_entropy.py): the forward pass makes the gradients, from
    a chunk of the logits at a time, which its kernel overwrites.

    Its tensors have the sizes of a real one, and not the numbers."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        rows, width = hidden.shape
        parts = -(-weight.shape[0] // width)
        # The next power of two.
        size = 1 << (-(-rows // parts) - 1).bit_length()
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = hidden.new_empty(rows, dtype=torch.float32)
        for begin in range(0, rows, size):
            part = hidden[begin : begin + size]
            logits = part @ weight.t()
            losses[begin : begin + size] = logits[:, 0]
            of_hidden[begin : begin + size] = logits @ weight.to(logits.dtype)
            if of_weight is not None:
                of_weight += (logits.t() @ part.to(logits.dtype)).to(weight.dtype)
            del logits
        ctx.save_for_backward(of_hidden, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden, of_weight, None


class _Compiled(torch.autograd.Function):
    """``cross_entropy(logits.float(), labels)`` under torch.compile.

    One kernel reads the logits for their maximum and sum in each row, and the backward pass writes
    the gradient in their own dtype; no copy in float32 is in memory. Tensors have the real sizes,
    and not the numbers."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        most, sums = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
        ctx.save_for_backward(logits, labels, most, sums)
        return sums.sum()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        logits, *_ = ctx.saved_tensors
        return torch.empty_like(logits), None
