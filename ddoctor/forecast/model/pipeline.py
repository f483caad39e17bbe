"""The memory of the stage of a pipeline that needs most, by steps of two stages on fake tensors.

Under 1F1B the first stage keeps the activations of as many micro-batches as there are stages, and
the last those of one (Narayanan et al. 2021, arXiv 2104.04473, section 2.2). Stages in between keep
less than the first, and make no logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ddoctor.evidence.plan import Checkpointing, MemoryParts, Remedy, Way
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.companions import Companions
from ddoctor.forecast.model.forecasting import Forecast
from ddoctor.memory_tracking.work import StepWork


@dataclass(frozen=True, kw_only=True)
class PipelineForecast:
    """Forecasts the stage that needs most; as ``Forecast``."""

    way: ClassVar[Way] = Forecast.way
    doubt: ClassVar[float] = Forecast.doubt
    first: Forecast
    last: Forecast

    @property
    def checkpointing(self) -> Checkpointing:
        """Return what is recomputed."""
        return self.first.checkpointing

    @property
    def sequence(self) -> int | None:
        """Return tokens per sample; None: the model reads none."""
        return self.first.sequence

    @property
    def companions(self) -> Companions:
        """Return what is on each GPU besides its part of the model."""
        return self.first.companions

    @property
    def work(self) -> StepWork | None:
        """Return the operators of the stage with more FLOPs, for which the others wait."""
        return max(self._stages, key=lambda one: one.flops).work

    def parts(self, row: ForecastRow) -> MemoryParts:
        """Return the memory of each GPU of the stage that needs most, at the peak."""
        return self._largest(row).parts(row)

    def host(self, row: ForecastRow) -> int:
        """Return bytes of parameters, gradients and states that FSDP keeps in host memory."""
        return max(one.host(row) for one in self._stages)

    def nvme(self, row: ForecastRow) -> int:
        """Return 0: FSDP keeps nothing on NVMe."""
        return 0

    def moment(self, row: ForecastRow) -> str:
        """Return the phase and the module of the peak, and its stage."""
        stage = self._largest(row)
        return f"{stage.moment(row)}, of the {'first' if stage.fills else 'last'} stage"

    def most_samples(self, row: ForecastRow, memory: int) -> int:
        """Return the largest micro-batch on a GPU with this memory in bytes; 0: none fits."""
        return self._largest(row).most_samples(row, memory)

    def without_checkpointing(self, row: ForecastRow) -> MemoryParts | None:
        """Return the memory without activation checkpointing; None: it is off."""
        return self._largest(row).without_checkpointing(row)

    @property
    def expandable(self) -> bool:
        """Whether segments of torch's allocator are expandable."""
        return self.first.expandable

    def with_expandable(self, row: ForecastRow) -> MemoryParts | None:
        """Return the memory with expandable segments; None: they are on."""
        return self._largest(row).with_expandable(row)

    @property
    def eager(self) -> PipelineForecast | None:
        """Return the forecast without torch.compile; None: it is without."""
        first, last = self.first.eager, self.last.eager
        return PipelineForecast(first=first, last=last) if first and last else None

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """Return the GPU bytes that each remedy saves on the stage that needs most now."""
        return self._largest(row).gains(row)

    @property
    def _stages(self) -> tuple[Forecast, Forecast]:
        return self.first, self.last

    def _largest(self, row: ForecastRow) -> Forecast:
        return max(self._stages, key=lambda one: one.parts(row).total)
