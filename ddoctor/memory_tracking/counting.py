"""Describes operators on fake tensors by what they ask of a GPU: FLOPs, bytes, and kernels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ddoctor.memory_tracking.work import Operator, Product

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
# They start no kernel, though their schemas name no alias.
VIEWS = frozenset({"_unsafe_view", "_reshape_alias", "detach", "lift_fresh", "alias"})
ALLOCATIONS = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
)
# They overwrite what is in the tensor, and do not read it.
OVERWRITE = frozenset({"zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_"})
# They read only what they return of their first tensor: the rows of a table, the labels' numbers.
PICK = frozenset({"embedding", "index", "gather", "index_select", "nll_loss_forward"})
ATTENTION = "scaled_dot_product"
# aten/src/ATen/native/cuda/MultiTensorApply.cuh: elements of a chunk, and chunks of a kernel.
CHUNK, CHUNKS = 65_536, 320


class WorkCounter:
    """Counts the operators of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, Counter[Operator]] = defaultdict(Counter)
        """By phase, each operator with its number of calls."""

    def count(
        self, phase: str, func: Any, args: Sequence[Any], kwargs: Any, made: Any, flops: int
    ) -> None:
        """Count a call, with its result and its FLOPs by torch's formula."""
        self.add(phase, describe(func, args, kwargs, made, flops))

    def add(self, phase: str, one: Operator) -> None:
        """Count a call of this operator."""
        self.phases[phase][one] += 1


def describe(func: Any, args: Sequence[Any], kwargs: Any, made: Any, flops: int = 0) -> Operator:
    """Return what a call asks of a GPU; ``flops``: by torch's formula, with attention in full."""
    name, is_view, written = _schema(func)
    if is_view:
        return Operator(kind="view")
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    results = [one for one in tree_leaves(made) if isinstance(one, Tensor)]
    changed = [
        one
        for index in written
        if index < len(args)
        for one in tree_leaves(args[index])
        if isinstance(one, Tensor)
    ]
    inputs = given
    if name in OVERWRITE:
        inputs = given[1:]
    elif name in PICK:
        inputs = [*results, *given[1:]]
    fresh = [] if written else results
    moved = sum(map(_bytes, inputs)) + sum(map(_bytes, fresh)) + sum(map(_bytes, changed))
    half = bool(results or changed) and (results or changed)[0].dtype in HALVES
    if not flops:
        kernels = 1
        if name.startswith("_foreach"):
            elements = sum(one.numel() for one in (changed or results))
            kernels = max(1, -(-elements // (CHUNK * CHUNKS)))
        return Operator(kind="other", half=half, moved=moved, kernels=kernels)
    if ATTENTION in name:
        causal = any(one is True for one in args) or bool((kwargs or {}).get("is_causal"))
        return Operator(
            kind="attention", half=half, flops=flops // 2 if causal else flops, moved=moved
        )
    return Operator(
        kind="product", half=half, flops=flops, moved=moved, size=_size(name, args, flops, results)
    )


def fused(inputs: Any, made: Any) -> Operator:
    """Return what a fused kernel asks of a GPU: it reads its inputs, and writes its results."""
    moved = sum(_bytes(one) for one in tree_leaves((inputs, made)) if isinstance(one, Tensor))
    return Operator(kind="other", moved=moved)


@cache
def _schema(func: Any) -> tuple[str, bool, tuple[int, ...]]:
    """Return an operator's name, whether it starts no kernel, and the arguments that it changes."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    written = tuple(
        index
        for index, one in enumerate(schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    )
    aliases = any(one.alias_info is not None for one in schema.returns)
    nothing = name in VIEWS or name in ALLOCATIONS or (aliases and not written)
    return name, nothing, written


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor in memory: an expanded dimension is there once.

    A sparse one counts in full, as fake tensors do not know how many of its numbers there are.
    """
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.itemsize
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size for size, stride in sizes if stride) * tensor.itemsize


PRODUCTS: Mapping[str, tuple[int, int]] = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
}
"""The positions of the two factors."""


def _size(name: str, args: Sequence[Any], flops: int, results: Sequence[Tensor]) -> Product | None:
    if name in PRODUCTS:
        left, right = (args[index].shape for index in PRODUCTS[name])
        return Product(prod(left[:-2]), left[-2], right[-1], left[-1])
    if name == "convolution" and not args[6]:
        channels = results[0].shape[1]
        rows = results[0].numel() // channels
        return Product(1, rows, channels, max(1, flops // (2 * rows * channels)))
    return None
