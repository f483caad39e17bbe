"""What the ranks of a training exchange in a step, and how a rank that left one midway is made up
for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddoctor.memory_sweep.work import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn


class Exchange(ABC):
    """Of one rank's part of the model, which it may make anew."""

    work: Workload

    @property
    @abstractmethod
    def apart(self) -> nn.Module:
        """The model, for a step that waits for nobody."""

    @abstractmethod
    def together(self) -> nn.Module:
        """The model, for a step with all ranks, which begins."""

    @property
    def settled(self) -> bool:
        """Whether what is exchanged is known, and stays as it is."""
        return True

    @property
    def buckets(self) -> Sequence[Tensor]:
        """Tensors for the exchange alone, which are there all the time."""
        return ()

    @property
    def unseen(self) -> int:
        """Bytes of such as are not among them yet."""
        return 0

    @abstractmethod
    def demand_gradients(self) -> None:
        """After the backward pass.

        Raises:
            DoctorError: one is missing that the ranks would wait for.
        """

    @abstractmethod
    def forget(self) -> bool:
        """A step that this rank has left midway; whether the optimizer is the same as before."""

    @abstractmethod
    def finish(self) -> None:
        """Of a step together that this rank has left, what the others still wait for."""

    @abstractmethod
    def renew(self) -> None:
        """On all ranks, before the first step, and after one that a rank has left so."""


class NoExchange(Exchange):
    """One rank alone."""

    def __init__(self, work: Workload) -> None:
        self.work = work

    @property
    def apart(self) -> nn.Module:
        """The model itself."""
        return self.work.model

    def together(self) -> nn.Module:
        """The same."""
        return self.work.model

    def demand_gradients(self) -> None:
        """Nobody waits for them."""

    def forget(self) -> bool:
        """Its gradients."""
        self.work.model.zero_grad()
        return True

    def finish(self) -> None:
        """Nobody waits."""

    def renew(self) -> None:
        """There is nothing else."""
