"""The communication of a training step, and how it completes after one rank ran out of memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddoctor.memory_sweep.work import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn


class Exchange(ABC):
    """The communication of one rank, whose model it may build again."""

    work: Workload

    @property
    @abstractmethod
    def apart(self) -> nn.Module:
        """Return the model for a step without communication."""

    @abstractmethod
    def together(self) -> nn.Module:
        """Begin a step with all ranks; return the model for it."""

    @property
    def settled(self) -> bool:
        """Whether the collectives of a step are known and final."""
        return True

    @property
    def buckets(self) -> Sequence[Tensor]:
        """Return the permanent tensors for communication."""
        return ()

    @property
    def unseen(self) -> int:
        """Return the bytes of permanent tensors that are not known yet."""
        return 0

    @abstractmethod
    def demand_gradients(self) -> None:
        """Check the gradients after the backward pass.

        Raises:
            DoctorError: a gradient is missing for which the ranks would wait.
        """

    @abstractmethod
    def forget(self) -> bool:
        """Discard a step that this rank left midway; return whether the optimizer stays valid."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the collectives of a step that this rank left, for which others still wait."""

    @abstractmethod
    def renew(self) -> None:
        """Rebuild on all ranks, before the first step and after a step that a rank left."""


class NoExchange(Exchange):
    """No communication: one rank alone."""

    def __init__(self, work: Workload) -> None:
        self.work = work

    @property
    def apart(self) -> nn.Module:
        """Return the model itself."""
        return self.work.model

    def together(self) -> nn.Module:
        """Return the model itself."""
        return self.work.model

    def demand_gradients(self) -> None:
        """No other rank waits for them."""

    def forget(self) -> bool:
        """Drop the gradients; the optimizer stays valid."""
        self.work.model.zero_grad()
        return True

    def finish(self) -> None:
        """No other rank waits."""

    def renew(self) -> None:
        """There is nothing to rebuild."""
