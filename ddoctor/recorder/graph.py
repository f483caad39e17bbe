"""The size of the graph that the backward passes of one step run through."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

CAST = "ToCopyBackward"
MOST = 20_000
"""Operations that are counted: it takes 1 µs each."""


class Graph:
    """Counts the operations of one step."""

    def __init__(self) -> None:
        self.operations = 0
        """Operations, but for those that only store a gradient."""
        self.parameters = 0
        """Tensors whose gradients they compute."""
        self.casts = self.cast_parameters = self.cast_bytes = 0
        """Casts of these to another type; how many are cast in each pass; bytes of all casts."""

    def add(self, tensors: Any) -> None:
        """Count the graph of what a backward pass begins with."""
        roots = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
        waiting = [one.grad_fn for one in roots if isinstance(one, torch.Tensor) and one.grad_fn]
        seen = set(waiting)
        casts: Counter[Any] = Counter()
        while waiting and len(seen) < MOST:
            node = waiting.pop()
            if hasattr(node, "variable"):
                self.parameters += 1
            else:
                self.operations += 1
            cast = node.name().startswith(CAST)
            for other, _ in node.next_functions:
                if cast and hasattr(other, "variable"):
                    casts[other] += 1
                if other is not None and other not in seen:
                    seen.add(other)
                    waiting.append(other)
        self.casts += casts.total()
        self.cast_parameters += len(casts)
        self.cast_bytes += sum(times * node.variable.nbytes for node, times in casts.items())
