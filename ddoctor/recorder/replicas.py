"""What the parameters of a model add up to before its first step, and at the end.

Ranks that average gradients by hand may leave some out: those begin equal and end different.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ddoctor.evidence.wrapping import ParameterSum
from ddoctor.recorder.capture import capturing
from ddoctor.recorder.stepping import parameters

MOST = 512
"""Parameters of an optimizer."""


class _First(NamedTuple):
    """A parameter before the first step."""

    sum: float
    constant: bool
    """Whether all its numbers are equal, as zeros are: such ones begin equal by chance."""


class Replicas:
    """The sums of parameters of models that no wrapper keeps equal, where there are ranks."""

    def __init__(self) -> None:
        self._first: MutableMapping[torch.Tensor, _First] = WeakIdKeyDictionary()

    def note(self, optimizer: Optimizer) -> None:
        """Before its first step."""
        every = list(parameters(optimizer))
        if len(every) > MOST or not _has_peers() or capturing():
            return
        for one in every:
            if one not in self._first and _is_whole(one):
                least, most = one.detach().aminmax()
                self._first[one] = _First(_sum(one), bool(least == most))

    def sums(self, model: nn.Module) -> Iterator[ParameterSum]:
        """Those that did not begin with one number throughout, with what they hold now."""
        for name, one in model.named_parameters():
            first = self._first.get(one)
            if first is not None and not first.constant and one.requires_grad:
                yield ParameterSum(
                    name=name,
                    first=first.sum,
                    last=_sum(one),
                    # Without a copy of the parameter, for which a GPU may have no room.
                    magnitude=float(torch.linalg.vector_norm(one.detach(), 1, dtype=torch.double)),
                )


def _has_peers() -> bool:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return ready and torch.distributed.get_world_size() > 1


def _is_whole(one: Any) -> bool:
    # A DTensor may be a shard, and its sum a collective.
    return one.is_floating_point() and one.numel() > 0 and not hasattr(one, "placements")


def _sum(one: torch.Tensor) -> float:
    return float(one.detach().sum(dtype=torch.float64))
