"""Mamba's kernels on fake tensors: operators of the sizes that they read, keep and return.

As MambaInnerFn of mamba_ssm (ops/selective_scan_interface.py), which computes the convolution and
the steps' widths a second time in the backward pass, and its scan, which keeps a state of each
channel for every 2,048 tokens (csrc/selective_scan/selective_scan.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

MODULE = "transformers.models.mamba.modeling_mamba"
NAME = "mamba_inner_fn"
CHUNK = 2048


@contextmanager
def by_kernels() -> Iterator[None]:
    """Let transformers' Mamba run by its kernels in the whole process, on CPU tensors too."""
    module = sys.modules.get(MODULE)
    own = getattr(module, NAME, None)
    if module is None or own is None:
        yield
        return
    setattr(module, NAME, _inner)
    try:
        yield
    finally:
        setattr(module, NAME, own)


def _inner(*tensors: Any, delta_bias: Tensor, **_: Any) -> Tensor:
    *used, a, _, _, d = tensors
    made: Tensor = _Inner.apply(*used, a, d, delta_bias)  # type: ignore[no-untyped-call]
    return made


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        both: Tensor,
        conv: Tensor,
        conv_bias: Tensor | None,
        x_weight: Tensor,
        step_weight: Tensor,
        out_weight: Tensor,
        out_bias: Tensor | None,
        a: Tensor,
        d: Tensor,
        step_bias: Tensor,
    ) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            half = torch.get_autocast_dtype("cpu")
            x_weight, step_weight, out_weight = (
                one.to(half) for one in (x_weight, step_weight, out_weight)
            )
        both = both.contiguous()
        x, gate = both.chunk(2, dim=1)
        convolved = x.neg()
        chosen = linear(convolved.transpose(1, 2).flatten(0, 1), x_weight)
        steps = _steps(step_weight, chosen, x)
        samples, width, length = x.shape
        states = a.shape[1]
        rows = chosen.view(samples, length, -1)[..., -2 * states :]
        b, c = (one.transpose(1, 2).contiguous() for one in rows.chunk(2, dim=-1))
        kept = a.new_empty(samples, width, -(-length // CHUNK), 2 * states)
        out = convolved * steps
        gated = out * gate
        ctx.save_for_backward(
            *(both, conv, conv_bias, chosen, x_weight, step_weight, out_weight, out_bias),
            *(a, b, c, d, step_bias, kept, out),
        )
        return linear(gated.transpose(1, 2), out_weight, out_bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        both, conv, conv_bias, chosen, x_weight, step_weight, out_weight, out_bias, *rest = (
            ctx.saved_tensors
        )
        a, b, c, d, step_bias, _, out = rest
        with torch.autocast("cpu", enabled=False):
            x, gate = both.chunk(2, dim=1)
            convolved = x.neg()
            steps = _steps(step_weight, chosen, x)
            of_both = torch.empty_like(both)
            of_x, of_gate = of_both.chunk(2, dim=1)
            given = gradients[0].contiguous().flatten(0, 1)
            of_out = _by_channel(out_weight.t() @ given.t(), x)
            of_convolved, of_steps, gated = of_out * steps, of_out * convolved, out * gate
            of_gate.copy_(of_out)
            of_states = [torch.zeros_like(one, dtype=torch.float32) for one in (b, c)]
            of_out_weight = given.t() @ _flat(gated).t()
            of_chosen = torch.empty_like(chosen)
            rank, states = step_weight.shape[1], a.shape[1]
            for place, one in enumerate(of_states):
                begin = rank + place * states
                of_chosen[:, begin : begin + states] = one.transpose(1, 2).flatten(0, 1)
            flat = _flat(of_steps)
            of_step_weight = flat @ chosen[:, :rank]
            of_chosen[:, :rank] = flat.t() @ step_weight
            of_x_weight = of_chosen.t() @ convolved.transpose(1, 2).flatten(0, 1)
            summed = _flat(of_convolved).addmm_(x_weight.t(), of_chosen.t())
            of_x.copy_(_by_channel(summed, x))
            alike = (None if one is None else torch.zeros_like(one) for one in (conv, conv_bias))
            last = (torch.zeros_like(one) for one in (a, d, step_bias))
            of_bias = None if out_bias is None else torch.zeros_like(out_bias)
        return of_both, *alike, of_x_weight, of_step_weight, of_out_weight, of_bias, *last


def _steps(weight: Tensor, chosen: Tensor, like: Tensor) -> Tensor:
    return _by_channel(weight @ chosen[:, : weight.shape[1]].t(), like)


def _by_channel(rows: Tensor, like: Tensor) -> Tensor:
    """Return (width, samples × length) as (samples, width, length), without a copy."""
    samples, width, length = like.shape
    return rows.view(width, samples, length).transpose(0, 1)


def _flat(one: Tensor) -> Tensor:
    return one.transpose(0, 1).flatten(1)
