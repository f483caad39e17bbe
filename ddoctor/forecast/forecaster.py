"""The interface of a forecast: the GPU memory of each strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ddoctor.evidence.plan import Checkpointing, MemoryParts, Remedy, Strategy, Way


@dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """One strategy on a number of GPUs."""

    strategy: Strategy
    gpus: int
    accumulation: int = 1
    """Micro-batches per optimizer step."""


class Forecaster(ABC):
    """Forecasts for one model, optimizer and micro-batch."""

    way: ClassVar[Way]
    doubt: ClassVar[float]
    """The real memory may be up to this many times the forecast."""
    checkpointing: Checkpointing = "none"

    @property
    def sequence(self) -> int | None:
        """Return tokens per sample; None: not known, or there are none."""
        return None

    @abstractmethod
    def parts(self, row: ForecastRow) -> MemoryParts:
        """Return the memory of each GPU at the peak.

        Raises:
            DoctorError: the model cannot be forecast.
        """

    @abstractmethod
    def host(self, row: ForecastRow) -> int:
        """Return bytes of host memory that each rank needs for offloaded tensors."""

    def moment(self, row: ForecastRow) -> str:
        """Return the moment of the peak; empty: not known."""
        del row
        return ""

    def most_samples(self, row: ForecastRow, memory: int) -> int | None:
        """Return the largest micro-batch on a GPU with this memory in bytes; None: not known."""
        del row, memory
        return None

    def without_checkpointing(self, row: ForecastRow) -> MemoryParts | None:
        """Return the memory without activation checkpointing; None: it is off, or not known."""
        del row
        return None

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """Return the GPU bytes that each remedy saves, for the remedies that can be forecast."""
        del row
        return {}
