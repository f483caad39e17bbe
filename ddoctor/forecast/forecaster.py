"""What tells how much of a GPU each strategy takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ddoctor.evidence.plan import Checkpointing, MemoryParts, Remedy, Strategy, Way


@dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """One way to train."""

    strategy: Strategy
    gpus: int
    accumulation: int = 1
    """Micro-batches for one step of the optimizer."""


class Forecaster(ABC):
    """For one model, optimizer and micro-batch."""

    way: ClassVar[Way]
    doubt: ClassVar[float]
    """The truth may be so many times the forecast."""
    checkpointing: Checkpointing = "none"

    @property
    def sequence(self) -> int | None:
        """Tokens of a sample; None: not known, or it has none."""
        return None

    @abstractmethod
    def parts(self, row: ForecastRow) -> MemoryParts:
        """What lies on each GPU at the peak.

        Raises:
            DoctorError: the model cannot be forecast.
        """

    @abstractmethod
    def host(self, row: ForecastRow) -> int:
        """Bytes of its host's memory that each rank has for what is kept there."""

    def moment(self, row: ForecastRow) -> str:
        """When the peak comes; empty: it is not known."""
        del row
        return ""

    def most_samples(self, row: ForecastRow, memory: int) -> int | None:
        """How many a GPU with so many bytes can compute at a time; None: it is not known."""
        del row, memory
        return None

    def without_checkpointing(self, row: ForecastRow) -> MemoryParts | None:
        """The same if no block were computed again; None: none is, or it is not known."""
        del row
        return None

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """Bytes of a GPU that each remedy saves, as far as that is forecast."""
        del row
        return {}
