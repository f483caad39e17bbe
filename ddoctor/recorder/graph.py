"""The size of the graph that the backward passes of one step run through."""

from __future__ import annotations

from typing import Any

import torch

MOST = 20_000
"""Operations that are counted: it takes 1 µs each."""


class Graph:
    """Counts the operations of one step."""

    def __init__(self) -> None:
        self.operations = 0
        """Operations, but for those that only store a gradient."""
        self.parameters = 0
        """Tensors whose gradients they compute."""

    def add(self, tensors: Any) -> None:
        """Count the graph of what a backward pass begins with."""
        roots = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
        waiting = [one.grad_fn for one in roots if isinstance(one, torch.Tensor) and one.grad_fn]
        seen = set(waiting)
        while waiting and len(seen) < MOST:
            node = waiting.pop()
            if hasattr(node, "variable"):
                self.parameters += 1
            else:
                self.operations += 1
            for other, _ in node.next_functions:
                if other is not None and other not in seen:
                    seen.add(other)
                    waiting.append(other)
