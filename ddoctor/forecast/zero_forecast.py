"""The memory of DeepSpeed's ZeRO by closed form: from the number of parameters."""

from __future__ import annotations

from collections.abc import Mapping

from ddoctor.evidence.plan import MemoryParts, Remedy, ZeroBuffers
from ddoctor.forecast.closed_form import CONTEXT, LIBRARY, ClosedForm, ForecastRow, Model
from ddoctor.forecast.zero import Moment, ZeroMemory, ZeroModel, memory


class ZeroClosedForm(ClosedForm):
    """Forecasts ZeRO from numbers alone."""

    def __init__(self, model: Model, buffers: ZeroBuffers) -> None:
        super().__init__(model)
        self._sizes, self._buffers = ZeroModel.of(model), buffers

    def parts(self, row: ForecastRow) -> MemoryParts:
        """Return the memory of each GPU."""
        found = self._memory(row)
        each = (
            parts_at(found, moment, row, self._model.activations if moment.computes else 0)
            for moment in found.moments
        )
        return max(each, key=lambda parts: parts.total)

    def host(self, row: ForecastRow) -> int:
        """Return bytes that DeepSpeed keeps in host memory."""
        return round(self._memory(row).host)

    def nvme(self, row: ForecastRow) -> int:
        """Return bytes that DeepSpeed keeps on NVMe."""
        return round(self._memory(row).nvme)

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """Return nothing: the rows themselves show what offloading saves."""
        return {}

    def _memory(self, row: ForecastRow) -> ZeroMemory:
        return memory(self._sizes, row, self._buffers)


def parts_at(
    found: ZeroMemory, moment: Moment, row: ForecastRow, activations: int = 0, **more: int
) -> MemoryParts:
    """Return the memory at a moment of the step."""
    return MemoryParts(
        parameters=round(found.parameters),
        gradients=round(moment.gradients),
        optimizer=round(found.optimizer),
        activations=activations,
        temporaries=round(moment.temporaries) + more.pop("temporaries", 0),
        communication=round(moment.communication),
        context=CONTEXT + (LIBRARY if row.gpus > 1 else 0),
        **more,
    )
