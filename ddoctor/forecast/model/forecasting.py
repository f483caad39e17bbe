"""The memory of one GPU for each strategy, by a step of the model on fake tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from traceback import walk_tb
from typing import ClassVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Checkpointing, MemoryParts, Remedy, Way
from ddoctor.forecast.closed_form import CONTEXT, LIBRARY, ForecastRow
from ddoctor.forecast.companions import NONE, Companions
from ddoctor.forecast.model import optimizers
from ddoctor.forecast.model.adapters import halve
from ddoctor.forecast.model.blueprint import Blueprint, said
from ddoctor.forecast.model.growth import Growth
from ddoctor.forecast.model.sharding import Sharding
from ddoctor.forecast.model.step import Footprint, footprint, passes
from ddoctor.forecast.optimizers import OPTIMIZERS
from ddoctor.forecast.options import Precision
from ddoctor.memory_tracking.work import StepWork

# aten/src/ATen/cuda/CublasHandlePool.cpp: the cuBLAS workspace from torch's allocator on Hopper;
# other GPUs have less.
WORKSPACE = 32 * 2**20
PHASES = {
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer step",
    "evaluation": "evaluation",
}
OURS = Path(__file__).parents[2]
# One step serves all numbers of ranks: sharded tensors shrink with their number.
FEWEST = 2
# So many samples more or less, as a share, make no other fragmentation.
NEAR = 0.1
# Each further micro-batch in flight adds as much as the third.
MOST_IN_FLIGHT = 3


class Undecided(DoctorError):
    """The model's control flow depends on values, and fake tensors have none."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecasts one micro-batch of a model by a step on fake tensors."""

    way: ClassVar[Way] = "fake tensors"
    doubt: ClassVar[float] = 1.15
    """Margin for what the forecast lacks: cuDNN workspaces, sums of reductions.

    On CPU tensors the forecast is right to 3 %. On an H100, 15 trainings reserved up to 10.5 %
    more than forecast (docs/measurements, 27 November 2026)."""

    blueprint: Blueprint
    precision: Precision
    optimizer: str
    samples: int
    length: int
    checkpointing: Checkpointing = "none"
    compiled: bool = False
    """Whether torch.compile compiles each block by itself."""
    evaluated: int = 0
    """Samples of a batch of an evaluation between two steps; 0: there is none."""
    companions: Companions = NONE
    fills: bool = False
    """The first stage of a pipeline, which keeps the activations of all micro-batches in flight."""
    context: int = 1
    """Size of context parallelism: attention also reads the keys of other ranks."""
    keys: int = 0
    """Bytes of keys and values that context parallelism gathers for one block, with gradients."""
    fewer: float = 1.0
    """FSDP shards over this share of the ranks: each expert is on fewer of them."""
    expandable: bool = False
    """Whether segments of torch's allocator are expandable."""
    _steps: dict[tuple[Sharding | None, int, int, float], Footprint] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def parts(self, row: ForecastRow) -> MemoryParts:
        """Return the memory of each of this number of GPUs at the peak.

        Raises:
            DoctorError: the model's forward pass depends on the values that it computes.
        """
        step = self._in_step(row)
        return max(step, self._generating(row) or step, key=lambda one: one.total)

    def _generating(self, row: ForecastRow) -> MemoryParts | None:
        """Return the memory while the model generates; None: it does not."""
        found = self._spread(row)
        casts = found.gradients // 2 if self.precision.endswith("mixed") else 0
        return self.companions.generating(self._in_step(row), row, self.samples, casts)

    def _in_step(self, row: ForecastRow) -> MemoryParts:
        found = self._spread(row)
        beside = 0
        if row.strategy == "ddp":
            # DDP's buckets add to the gradients (gradient_as_bucket_view is off by default).
            beside = found.gradients
        elif row.strategy == "fsdp-offload":
            # torch/distributed/fsdp/_fully_shard, all_gather_inputs and foreach_reduce: a block's
            # share comes from the host, and its gradients' share goes there. Parameters outside of
            # blocks do so before the first activations, and after the last.
            beside = 2 * found.block // row.shards
        parts = found.peak.parts
        logits = {name: found.peak.logits.get(name, 0) for name in ("Activation", "Temp")}

        def of(*names: str) -> int:
            return sum(parts.get(name, 0) for name in names)

        tensors = MemoryParts(
            parameters=of("Parameter", "Sharded Param", "Buffer"),
            gradients=of("Gradient", "Sharded Grad"),
            optimizer=found.states,
            activations=of("Activation", "Other", "Inputs") - logits["Activation"],
            logits=sum(logits.values()),
            temporaries=of("Temp", "Optstate", "OptState")
            - found.states
            - logits["Temp"]
            + found.peak.operators
            + WORKSPACE,
            communication=beside
            + self.keys
            + of("Unsharded Param", "Unsharded Grad", "All Gather", "Reduce Scatter"),
            unused=self._unused(found),
            context=CONTEXT + (LIBRARY if row.gpus > 1 else 0),
        )
        return self.companions.added(tensors, row)

    def _unused(self, found: Footprint) -> int:
        reserved = found.expanded if self.expandable else found.reserved
        return max(0, reserved - found.total)

    def host(self, row: ForecastRow) -> int:
        """Return bytes of parameters, gradients and states that FSDP keeps in host memory."""
        if row.strategy != "fsdp-offload":
            return 0
        shares = self._spread(replace(row, strategy="fsdp"))
        lying = shares.peaks[-1].parts
        trained = lying["Sharded Param"] + shares.gradients // row.shards + shares.states
        return trained + self.companions.on_host(row)

    def nvme(self, row: ForecastRow) -> int:
        """Return 0: FSDP keeps nothing on NVMe."""
        return 0

    def moment(self, row: ForecastRow) -> str:
        """Return the phase and the module of the peak."""
        if self.parts(row) != self._in_step(row):
            return "generation of completions"
        return self._moment(row)

    def _moment(self, row: ForecastRow) -> str:
        peak = self._spread(row).peak
        module = peak.module.partition(".")[2]
        at = f", at {module}" if module and peak.phase != "optimizer" else ""
        return f"{PHASES[peak.phase]}{at}"

    def most_samples(self, row: ForecastRow, memory: int) -> int:
        """Return the largest micro-batch on a GPU with this memory in bytes; 0: none fits.

        Fragmentation is forecast again near the limit.
        """
        room = memory / self.doubt
        larger = replace(self, samples=self._about(row, room))
        growth = self.growth(row, larger)
        if not (found := growth.most(room, growth.unused)):
            return found
        steps = (one for one in (self, larger) if abs(one.samples - found) <= NEAR * found)
        near = next(steps, None) or replace(self, samples=found)
        parts = near._in_step(row)
        found = growth.most(room, parts.unused / parts.used)
        generating = self._generating(row)
        if generating is None:
            return found
        room += generating.generation - generating.total
        return min(found, max(0, int(self.samples * room / generating.generation)))

    def _about(self, row: ForecastRow, room: float) -> int:
        """Return about how many samples fit, from the activations with these samples.

        At least twice as many as these.
        """
        now, found = self._in_step(row), self._spread(row)
        whole = room / (1 + now.unused / now.used)
        beside = now.used - found.total
        times = [
            (whole - beside - peak.total + kept) / kept
            for peak in found.peaks
            if peak.phase != "optimizer"
            and (kept := peak.parts.get("Activation", 0) + peak.parts.get("Temp", 0))
        ]
        return max(2, int(min(times, default=2))) * self.samples

    def growth(self, row: ForecastRow, larger: Forecast, like: ForecastRow | None = None) -> Growth:
        """Return how memory grows with the samples in a step.

        ``larger``: the forecast with more samples; ``like``: a row whose activations are the same.
        """
        now = self._in_step(row)
        few, many = (forecast._used(like or row) for forecast in (self, larger))
        more = larger.samples - self.samples
        return Growth(
            samples=self.samples,
            peaks=self._used(row),
            slopes={phase: (many[phase] - size) / more for phase, size in few.items()},
            gradients=self._spread(row).gradients // row.shards,
            unused=now.unused / now.used,
        )

    def without_checkpointing(self, row: ForecastRow) -> MemoryParts | None:
        """Return the memory without activation checkpointing; None: it is off."""
        if self.checkpointing == "none":
            return None
        return replace(self, checkpointing="none").parts(row)

    def with_expandable(self, row: ForecastRow) -> MemoryParts | None:
        """Return the memory with expandable segments; None: they are on."""
        if self.expandable:
            return None
        other = replace(self, expandable=True)
        other._steps.update(self._steps)
        return other.parts(row)

    @property
    def eager(self) -> Forecast | None:
        """Return the forecast without torch.compile; None: it is without."""
        return replace(self, compiled=False) if self.compiled else None

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """Return the GPU bytes that each remedy saves."""
        others: dict[Remedy, Forecast] = {}
        if self.evaluated > 1:
            others["smaller evaluation"] = replace(self, evaluated=self.evaluated // 2)
        if self.samples % 2 == 0:
            others["smaller batch"] = replace(self, samples=self.samples // 2)
        if self.checkpointing != "every":
            others["checkpointing"] = replace(self, checkpointing="every")
        if self.optimizer in ("adamw", "adamw-fp32", "adamw_torch"):
            others["8 bits"] = replace(self, optimizer="adamw-8bit")
        now = self.parts(row).total
        saved = {name: now - one.parts(row).total for name, one in others.items()}
        if (offloaded := self._offloaded(row)) is not None:
            saved["offload"] = now - self.parts(offloaded).total
        return saved

    @property
    def sequence(self) -> int | None:
        """Return tokens per sample; None: the model reads none."""
        return self.length if self.blueprint.longest is not None else None

    @property
    def flops(self) -> int:
        """Return FLOPs of the forward and backward pass, recomputation included."""
        return self._step(None, 1).flops

    @property
    def work(self) -> StepWork | None:
        """Return the operators of a step with one micro-batch, recomputation included."""
        found = self._step(None, 1).work
        return found.attending(self.context) if found is not None else None

    def _used(self, row: ForecastRow) -> Mapping[str, int]:
        """Return the bytes in use at the peak of each phase."""
        one = self._spread(row)
        beside = self._in_step(row).used - one.total
        return {peak.phase: peak.total + beside for peak in one.peaks}

    def _offloaded(self, row: ForecastRow) -> ForecastRow | None:
        if row.strategy == "fsdp-offload" or not OPTIMIZERS[self.optimizer].on_cpu:
            return None
        return replace(row, strategy="fsdp-offload")

    def work_like(self, other: Forecast) -> StepWork | None:
        """Return the operators of a step, of which the optimizer's are those of the other one."""
        if (None, 1, 1, 1) in self._steps:
            return self.work
        return passes(
            self._build,
            partial(self.blueprint.batch, self.samples, self.length),
            partial(optimizers.made, self.optimizer),
            other._step(None, 1),
            autocast=self._computing,
            checkpointing=self.checkpointing,
            compiled=self.compiled,
        )

    @property
    def _computing(self) -> torch.dtype | None:
        """Return the layers' computing dtype, if it differs from the weights'."""
        # float16 is as large as bfloat16.
        mixed = self.precision.endswith("mixed") or self.blueprint.autocast
        return torch.bfloat16 if mixed else None

    def _build(self) -> nn.Module:
        model = self.blueprint.build()
        return halve(model) if self.precision == "bf16" else model

    def _spread(self, row: ForecastRow) -> Footprint:
        in_flight = row.in_flight if self.fills else 1
        # A third micro-batch adds no memory to that of the second. A full pipeline counts as having
        # gradients of one before.
        turns = 2 if in_flight > 1 else min(row.accumulation, 2)
        if not row.strategy.startswith("fsdp"):
            return self._filled(None, turns, in_flight)
        keeps = row.strategy == "fsdp-gradients"
        sharding = Sharding(
            ranks=FEWEST,
            keeps_parameters=keeps,
            pipelined=row.parallel.pipeline > 1,
            computing=self._computing,
        )
        if row.strategy == "fsdp-offload":
            # Sharded tensors are off the GPU, as if infinitely many ranks shared them.
            return self._filled(sharding, turns, in_flight, inf)
        return self._filled(sharding, turns, in_flight, row.shards * self.fewer / FEWEST)

    def _filled(
        self, sharding: Sharding | None, accumulation: int, in_flight: int, spread: float = 1
    ) -> Footprint:
        found = self._step(sharding, accumulation, min(in_flight, MOST_IN_FLIGHT), spread)
        if in_flight <= MOST_IN_FLIGHT:
            return found
        fewer = self._step(sharding, accumulation, MOST_IN_FLIGHT - 1, spread)
        return found.filled(fewer, in_flight - MOST_IN_FLIGHT)

    def _step(
        self,
        sharding: Sharding | None,
        accumulation: int,
        in_flight: int = 1,
        spread: float = 1,
    ) -> Footprint:
        key = sharding, accumulation, in_flight, spread
        if key not in self._steps and spread != 1:
            one = self._step(sharding, accumulation, in_flight)
            self._steps[key] = one.spread(spread)
        if key in self._steps:
            return self._steps[key]
        try:
            self._steps[key] = footprint(
                self._build,
                partial(self.blueprint.batch, self.samples, self.length),
                partial(optimizers.made, self.optimizer),
                autocast=self._computing,
                sharding=sharding,
                checkpointing=self.checkpointing,
                compiled=self.compiled,
                accumulation=accumulation,
                in_flight=in_flight,
                evaluation=partial(self.blueprint.batch, self.evaluated, self.length)
                if self.evaluated
                else None,
            )
            return self._steps[key]
        except DoctorError:
            raise
        except Exception as error:  # the model's own code may not fit its config
            *_, (frame, _) = walk_tb(error.__traceback__)
            if Path(frame.f_code.co_filename).is_relative_to(OURS):
                raise  # a line of this package: then the model is not at fault
            name = self.blueprint.name
            if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
                raise Undecided(
                    f"{name} has control flow that depends on computed values"
                ) from None
            raise DoctorError(
                f"{name} cannot run without data ({said(error)}): pass a function that makes its "
                "loss (--workload package.module:factory), or describe the model with --params, "
                "--activations and --layers"
            ) from None
