"""What the operators of a training step ask of a GPU, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["product", "attention", "other", "view"]


class Product(NamedTuple):
    """The size of a matrix product, (rows × inner) by (inner × columns), ``batch`` times."""

    batch: int
    rows: int
    columns: int
    inner: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an operator."""

    kind: Kind
    """A view starts no kernel. Convolutions are products, of the size of their implicit matrices.
    """
    half: bool = False
    """Its numbers have half precision, so that tensor cores multiply them."""
    flops: int = 0
    """FLOPs of matrix products; those of causal attention without the masked half."""
    moved: int = 0
    """Bytes that it reads and writes in GPU memory."""
    size: Product | None = None
    kernels: int = 1
    """Kernels that it starts."""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The operators of each phase of a step with one micro-batch, on a GPU with the whole model."""

    phases: Mapping[str, Counter[Operator]]
    """By phase (forward, backward, optimizer), each operator with its number of calls."""
    gradients: int
    """Bytes of all gradients."""
    tensors: int
    """Number of gradients."""

    @property
    def flops(self) -> int:
        """Return FLOPs of the forward and the backward pass."""
        return sum(
            one.flops * count
            for phase, operators in self.phases.items()
            if phase != "optimizer"
            for one, count in operators.items()
        )
