"""Searches micro-batch, accumulation, checkpointing and strategy by step time and memory.

Few steps run on fake tensors. Memory grows linearly with the samples. What does not fit would not
fit with more samples, or with less recomputation. FSDP that shards all keeps least of all FSDP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Candidate, Checkpointing, Strategy
from ddoctor.forecast import planning, timing
from ddoctor.forecast.closed_form import ForecastRow, Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.options import PlanRequest

if TYPE_CHECKING:
    from ddoctor.forecast.model.forecasting import Forecast

RECOMPUTED: tuple[Checkpointing, ...] = ("every", "selective:op", "none")
"""From least memory to most."""
SMALLEST: Strategy = "fsdp"
LARGER = ("fsdp-gradients", "fsdp-hybrid")
"""They keep at least as much as the smallest, and the same activations."""
# A bound for models whose memory hardly grows with the samples.
MOST_SAMPLES = 4096


@dataclass(frozen=True, kw_only=True)
class Search:
    """The configurations of a model's training on one model of GPU."""

    model: Model
    device: PlannedGpu
    work: PlanRequest
    """Its micro-batch and checkpointing, unless None, are not searched."""
    forecast: Forecast
    _forecasts: dict[tuple[Checkpointing, int], Forecast] = field(default_factory=dict, init=False)
    _models: dict[tuple[Checkpointing, int], Model] = field(default_factory=dict, init=False)

    def micro_batches(self, gpus: int) -> Sequence[int]:
        """Return the samples per GPU and micro-batch to compare on this number of GPUs.

        With a global batch, whole numbers of micro-batches make it up. Without one, powers of two.
        """
        batch, fixed = self.work.global_batch, self.work.micro_batch
        if fixed is not None:
            return (fixed,) if (batch or fixed * gpus) % (fixed * gpus) == 0 else ()
        if batch is None:
            return tuple(2**power for power in range(MOST_SAMPLES.bit_length()))
        each, rest = divmod(batch, gpus)
        return tuple(n for n in range(1, min(each, MOST_SAMPLES) + 1) if not rest and each % n == 0)

    def frontier(self, gpus: int) -> Sequence[Candidate]:
        """Return what fits on this number of GPUs, fastest first.

        No other configuration is as fast with as little memory. The memory of the fastest is that
        of a plan, and the others' is estimated.
        """
        kept: list[Candidate] = []
        for one in sorted(self._possible(gpus), key=self._rank):
            found = one if kept else self._exact(one)
            if self._fits(found.memory) and (not kept or found.memory < kept[-1].memory):
                kept.append(found)
        return kept

    def of(self, which: Checkpointing, samples: int) -> Forecast:
        """Return the forecast of this micro-batch, whose steps run once."""
        key = which, samples
        given = self.forecast.checkpointing, self.forecast.samples
        if key not in self._forecasts:
            one = replace(self.forecast, checkpointing=which, samples=samples)
            self._forecasts[key] = self.forecast if key == given else one
        return self._forecasts[key]

    def timed(self, forecast: Forecast) -> Model:
        """Return the model with the operators of this forecast's step."""
        key = forecast.checkpointing, forecast.samples
        if key not in self._models:
            self._models[key] = replace(self.model, work=forecast.work_like(self.forecast))
        return self._models[key]

    @property
    def smallest(self) -> Forecast:
        """Return the forecast of what needs least."""
        return self.of(self._checkpointings[0], self.work.micro_batch or 1)

    def work_of(self, forecast: Forecast) -> PlanRequest:
        """Return the options of a plan of this forecast."""
        return replace(self.work, micro_batch=forecast.samples)

    @property
    def _checkpointings(self) -> Sequence[Checkpointing]:
        fixed = self.work.checkpointing
        return RECOMPUTED if fixed is None else (fixed,)

    def _rank(self, one: Candidate) -> tuple[float, int, int]:
        """Return the key of the order: of equal ones, least recomputation first."""
        recomputed = self._checkpointings.index(one.checkpointing)
        return -one.samples_per_second, one.memory, -recomputed

    def _fits(self, memory: float) -> bool:
        return self.forecast.doubt * memory <= self.device.memory

    def _exact(self, one: Candidate) -> Candidate:
        total = self.of(one.checkpointing, one.micro_batch).parts(row(one)).total
        return msgspec.structs.replace(one, memory=total, estimated=False)

    def _possible(self, gpus: int) -> Iterator[Candidate]:
        """Yield the configurations whose tensors fit; what the allocator cannot use may not."""
        most: dict[Strategy, int] = {}
        strategies = sorted(planning.strategies(gpus), key=lambda one: one != SMALLEST)
        for which in self._checkpointings:
            for strategy in strategies:
                limits = [most.get(strategy, MOST_SAMPLES)]
                if strategy in LARGER:
                    limits.append(most[SMALLEST])
                most[strategy] = 0
                alone = ForecastRow(strategy=strategy, gpus=gpus)
                sizes = [n for n in self.micro_batches(gpus) if n <= min(limits)]
                for one in self._of_strategy(which, alone, sizes):
                    most[strategy] = one.micro_batch
                    yield one

    def _of_strategy(
        self, which: Checkpointing, alone: ForecastRow, sizes: Sequence[int]
    ) -> Iterator[Candidate]:
        """Yield what may fit with these micro-batches, as far as the first that does not."""
        if not sizes:
            return
        first = self.of(which, sizes[0])
        if not self._fits(first.parts(alone).used):
            return
        like = replace(alone, strategy=SMALLEST) if alone.strategy in LARGER else None
        growth = first.growth(alone, self.of(which, 2 * sizes[0]), like)
        for samples in sizes:
            if not self._fits(growth.used(samples)):
                return
            turns = planning.accumulated(replace(self.work, micro_batch=samples), alone.gpus)
            memory = growth.total(samples, turns)
            yield self._candidate(which, samples, replace(alone, accumulation=turns), memory)

    def _candidate(
        self, which: Checkpointing, samples: int, way: ForecastRow, memory: int
    ) -> Candidate:
        step = timing.step(self.timed(self.of(which, samples)), self.device, way, None)
        if step is None:
            raise DoctorError(
                f"no table has the network of {self.device.name} for {way.gpus} GPUs, which "
                "--advise needs for step times: pass fewer --gpus"
            )
        return Candidate(
            strategy=way.strategy,
            gpus=way.gpus,
            micro_batch=samples,
            accumulation=way.accumulation,
            checkpointing=which,
            memory=memory,
            estimated=True,
            step=step,
        )


def row(one: Candidate) -> ForecastRow:
    """Return the strategy, GPUs and accumulation of a candidate."""
    return ForecastRow(strategy=one.strategy, gpus=one.gpus, accumulation=one.accumulation)
