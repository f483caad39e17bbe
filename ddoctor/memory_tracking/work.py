"""What the operators of a training step ask of a GPU, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

    def deeper(self, longer: StepWork, blocks: int) -> StepWork:
        """Return the work of a model deeper by a number of blocks; ``longer`` has one more."""
        return StepWork(
            phases={
                phase: _grown(short, longer.phases[phase], blocks)
                for phase, short in self.phases.items()
            },
            gradients=self.gradients + blocks * (longer.gradients - self.gradients),
            tensors=self.tensors + blocks * (longer.tensors - self.tensors),
        )

    def attending(self, times: int) -> StepWork:
        """Return the work with attention to this many times as many keys."""
        phases = {
            phase: Counter(
                {
                    replace(one, flops=times * one.flops) if one.kind == "attention" else one: count
                    for one, count in operators.items()
                }
            )
            for phase, operators in self.phases.items()
        }
        return replace(self, phases=phases)

    @property
    def flops(self) -> int:
        """Return FLOPs of the forward and the backward pass."""
        return sum(
            one.flops * count
            for phase, operators in self.phases.items()
            if phase != "optimizer"
            for one, count in operators.items()
        )


def _grown(short: Counter[Operator], longer: Counter[Operator], blocks: int) -> Counter[Operator]:
    """Return the operators of a model that is deeper by a number of blocks.

    Of most, a block adds a number. Those on all parameters at once grow.
    """
    found, gone, added = short & longer, short - longer, longer - short
    for one in _largest(gone):
        larger = next((other for other in _largest(added) if other.half == one.half), None)
        if larger is None:
            found[one] += 1
            continue
        added -= Counter([larger])
        moved = one.moved + blocks * (larger.moved - one.moved)
        kernels = round(larger.kernels * moved / max(1, larger.moved))
        found[replace(larger, moved=moved, kernels=max(1, kernels))] += 1
    for one, count in added.items():
        found[one] += blocks * count
    return found


def _largest(operators: Counter[Operator]) -> list[Operator]:
    return sorted(operators.elements(), key=lambda one: one.moved, reverse=True)
