"""What optimizers find in the gradients of their parameters, in the first steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from ddoctor.recorder.capture import capturing
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.stepping import NEVER, Stepping, parameters
from ddoctor.recorder.swaps import compiled

LOOKS = 8
"""Steps without any gradient that show more than chance."""
FOLLOWED = 4
"""Steps of an optimizer whose gradients are followed into the next one."""


@dataclass
class _Followed:
    """One parameter of an optimizer: whether each step's gradient is still there in the next."""

    parameter: nn.Parameter
    left: torch.Tensor | None = None
    """Its gradient after the last step."""
    came: bool = False
    fresh: bool = False
    """Since then: whether a pass came to it, and whether any of these found it zeroed."""
    steps: int = 0
    carried: int = 0
    passed: bool = False
    """Since the last step: whether a pass came to it, also to zeros."""
    taken: int = 0
    empty: int = 0
    """Steps after a pass, and those of them that found only zeros in all parameters."""

    @harmless
    def coming(self, gradient: torch.Tensor) -> None:
        """A pass is about to add to the gradient."""
        held = self.parameter.grad
        self.passed = True
        if self.left is None or capturing():
            return
        if held is None:
            self.fresh = True
        else:
            # Several passes may add to it, of which the first finds what the step left.
            same = bool(held.any()) if self.came else torch.equal(held, self.left)
            self.fresh = self.fresh or not same
        self.came = True

    def stepped(self, optimizer: Optimizer) -> None:
        """The optimizer's step is over."""
        # A capture ends with an error if something is copied to the host.
        if capturing():
            return
        if self.passed:
            self.taken += 1
            self.empty += not any(one.grad.any() for one in _with_gradient(optimizer))
        if self.came:
            self.steps += 1
            self.carried += not self.fresh
        held = self.parameter.grad
        self.left = None if held is None or not held.any() else held.detach().clone()
        self.came = self.fresh = self.passed = False


class OptimizerGradients:
    """Whether there are any, and whether they are zeroed between two steps."""

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = stepping
        self._looks = 0
        self._found = False
        self._never_zeroed = False
        self._only_zeros: list[bool] = []
        """Of each optimizer that was followed."""

    @property
    def missing(self) -> bool:
        """Whether no optimizer found a gradient in any of its parameters."""
        return self._looks >= LOOKS and not self._found

    @property
    def never_zeroed(self) -> bool:
        """Whether an optimizer's gradients of all steps add up."""
        return self._never_zeroed

    @property
    def all_zero(self) -> bool:
        """Whether optimizers found only zeros in their first steps, where passes had added some.

        One of several may: that of a discriminator whose loss counts later.
        """
        return bool(self._only_zeros) and all(self._only_zeros)

    def follow(self, optimizer: Optimizer | None = None) -> None:
        """Follow the gradient of its smallest parameter that has one, for some steps."""
        # What is compiled depends on the hooks that it finds.
        whole = [] if optimizer is None or compiled() else [*_with_gradient(optimizer)]
        if optimizer is None or not whole:
            return
        followed = _Followed(min(whole, key=nn.Parameter.numel))
        handles: list[Any] = [
            followed.parameter.register_hook(followed.coming)  # type: ignore[no-untyped-call]
        ]

        @harmless
        def stepped(*args: Any) -> None:
            followed.stepped(optimizer)
            if max(followed.steps, followed.empty) >= FOLLOWED:
                self._only_zeros.append(followed.empty == followed.taken)
                self._never_zeroed |= followed.carried == followed.steps > 0
                for handle in handles:
                    handle.remove()

        handles.append(optimizer.register_step_post_hook(stepped))

    def look(self, number: int) -> int:
        """Between two steps: look for any gradient. Returns the step of the next call."""
        optimizers = self._stepping.optimizers
        self._found = self._found or not optimizers or any(map(_has_any, optimizers))
        self._looks += 1
        return number + 1 if self._looks < LOOKS and not self._found else NEVER


def _has_any(optimizer: Optimizer) -> bool:
    """Whether there is a gradient, or was one, or the optimizer is a dummy of a trainer's.

    transformers gives one parameter of one number to an optimizer that does nothing, where others
    step within the backward pass (trainer_pt_utils.py, LayerWiseDummyOptimizer).
    """
    every = [*parameters(optimizer)]
    numbers = sum(one.numel() for one in every)
    return bool(optimizer.state) or numbers <= 1 or any(one.grad is not None for one in every)


def _with_gradient(optimizer: Optimizer) -> Iterator[Any]:
    """Parameters of a plain model: the gradients of a shard come in another way."""
    for one in parameters(optimizer):
        if isinstance(one, nn.Parameter) and one.requires_grad and one.is_leaf:
            plain = one.grad is not None and one.grad.layout is torch.strided
            if plain and not hasattr(one, "placements"):
                yield one
