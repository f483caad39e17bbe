"""The memory of DeepSpeed's ZeRO, with the activations of a step on fake tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import torch

from ddoctor.evidence.plan import MemoryParts, ZeroBuffers
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model.blueprint import on_meta
from ddoctor.forecast.model.forecasting import FEWEST, PHASES, WORKSPACE, Forecast
from ddoctor.forecast.model.sharding import Sharding
from ddoctor.forecast.model.step import Footprint
from ddoctor.forecast.zero import ZeroMemory, ZeroModel, memory
from ddoctor.forecast.zero_forecast import parts_at
from ddoctor.memory_tracking.log import Peak


@dataclass(frozen=True, kw_only=True)
class ZeroForecast(Forecast):
    """Forecasts one micro-batch of a model whose weights DeepSpeed cast to ``precision``."""

    buffers: ZeroBuffers

    def host(self, row: ForecastRow) -> int:
        """Return bytes that DeepSpeed keeps in host memory."""
        return round(self._memory(row).host) + self.companions.on_host(row)

    def nvme(self, row: ForecastRow) -> int:
        """Return bytes that DeepSpeed keeps on NVMe."""
        return round(self._memory(row).nvme) + self.companions.on_nvme(row)

    def _in_step(self, row: ForecastRow) -> MemoryParts:
        return self._highest(row)[1]

    def _moment(self, row: ForecastRow) -> str:
        phase, _ = self._highest(row)
        if phase not in PHASES:
            return "reduction of the gradients"
        if phase == "optimizer":
            return PHASES[phase]
        peak = next(one for one in self._spread(row).peaks if one.phase == phase)
        module = peak.module.partition(".")[2]
        return PHASES[phase] + (f", at {module}" if module else "")

    def _highest(self, row: ForecastRow) -> tuple[str, MemoryParts]:
        return max(self._moments(row).items(), key=lambda one: one[1].total)

    def _moments(self, row: ForecastRow) -> Mapping[str, MemoryParts]:
        """Return the memory at each moment of the step."""
        found, zero = self._spread(row), self._memory(row)
        peaks = {one.phase: one for one in found.peaks}
        held = peaks["forward"].parts.get("Buffer", 0)
        unused = self._unused(found)
        made: dict[str, MemoryParts] = {}
        moments = [*zero.moments]
        if "evaluation" in peaks:
            moments.append(replace(zero.moments[0], phase="evaluation"))
        for moment in moments:
            own = _of_model(peaks[moment.phase]) if moment.computes else {"temporaries": 0}
            own["temporaries"] += WORKSPACE
            parts = parts_at(zero, moment, row, unused=unused, **own)
            whole = parts.parameters + held
            parts = msgspec.structs.replace(parts, parameters=whole)
            made[moment.phase] = self.companions.added(parts, row)
        return made

    def _used(self, row: ForecastRow) -> Mapping[str, int]:
        return {phase: parts.used for phase, parts in self._moments(row).items()}

    def _offloaded(self, row: ForecastRow) -> None:
        """Return nothing: the rows themselves show what offloading saves."""

    def _memory(self, row: ForecastRow) -> ZeroMemory:
        return memory(self._sizes, row, self.buffers)

    @cached_property
    def _sizes(self) -> ZeroModel:
        model = on_meta(self._build)
        every = list(model.parameters())
        trained = [one.numel() for one in every if one.requires_grad]
        modules = (
            sum(one.numel() for one in module.parameters(recurse=False))
            for module in model.modules()
        )
        sizes = (one.numel() for one in every)
        return ZeroModel(
            trained=sum(trained),
            frozen=sum(one.nbytes for one in every if not one.requires_grad),
            weight=2 if self.precision == "bf16" else 4,
            optimizer=self.optimizer,
            largest_module=max(modules),
            largest_tensor=max(trained, default=0),
            persistent=sum(size for size in sizes if size <= self.buffers.persistence),
        )

    @property
    def _computing(self) -> torch.dtype | None:
        """Return None: DeepSpeed casts the weights, and its engine uses no autocast."""
        return None

    def _spread(self, row: ForecastRow) -> Footprint:
        # Only its activations count, which are the same at each stage.
        sharding = Sharding(ranks=FEWEST)
        return self._step(sharding, 1).spread(max(1.0, row.gpus / FEWEST))


def _of_model(peak: Peak) -> dict[str, int]:
    """Return the bytes of activations and of what operators make at a peak."""
    logits = {name: peak.logits.get(name, 0) for name in ("Activation", "Temp")}
    kept = (peak.parts.get(name, 0) for name in ("Activation", "Other", "Inputs"))
    return {
        "activations": sum(kept) - logits["Activation"],
        "logits": sum(logits.values()),
        "temporaries": peak.parts.get("Temp", 0) - logits["Temp"] + peak.operators,
    }
