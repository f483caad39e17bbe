"""The memory of one GPU for each way to spread a model, by a step of it on fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import nn

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Checkpointing, MemoryParts, Strategy, Way
from ddoctor.forecast.allocator import replay
from ddoctor.forecast.closed_form import CONTEXT, GPUS_PER_HOST, LIBRARY, Optimizer, Precision
from ddoctor.forecast.model import optimizers
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.sharding import Sharding
from ddoctor.forecast.model.step import Footprint, footprint

# aten/src/ATen/cuda/CublasHandlePool.cpp: what torch's allocator gives cuBLAS to work in on Hopper;
# on others it is less.
WORKSPACE = 32 * 2**20
# One step tells for all numbers of ranks: what is spread is the smaller the more there are.
FEWEST = 2


class Forecast:
    """Of one micro-batch of a model."""

    way: Way = "fake tensors"
    doubt = 1.15
    """What of the GPU's own is not in it: the streams' own pools, the kernels' own buffers. On CPU
    tensors the forecast is right to 0.5 %; no GPU has been measured yet."""

    def __init__(
        self,
        blueprint: Blueprint,
        precision: Precision,
        optimizer: Optimizer,
        samples: int,
        length: int,
        checkpointing: Checkpointing = "none",
    ) -> None:
        self.checkpointing = checkpointing
        self._name = blueprint.name
        # Half a float is as large in float16.
        half = torch.bfloat16 if precision.endswith("mixed") else None
        self._computing = half

        def build() -> nn.Module:
            model = blueprint.build()
            return model.to(torch.bfloat16) if precision == "bf16" else model

        step = partial(
            footprint,
            build,
            partial(blueprint.batch, samples, length),
            optimizers.factory(optimizer),
            autocast=half,
            checkpointing=checkpointing,
        )
        self._step = cache(partial(self._footprint, step))
        self._found = cache(self._spread)

    def parts(self, strategy: Strategy, gpus: int, accumulation: int = 1) -> MemoryParts:
        """What lies on each of so many GPUs at the peak.

        Raises:
            DoctorError: the model's forward pass depends on the values that it computes.
        """
        found = self._found(strategy, gpus, accumulation)
        # DDP's buckets are beside the gradients (gradient_as_bucket_view is off by default).
        return _parts(found, gpus, found.gradients if strategy == "ddp" else 0)

    def moment(self, strategy: Strategy, gpus: int, accumulation: int = 1) -> str:
        """When in the step the peak comes: the phase, and the module."""
        peak = self._found(strategy, gpus, accumulation).peak
        module = peak.module.partition(".")[2]
        return f"{peak.phase}, {module}" if module and peak.phase != "optimizer" else peak.phase

    def _spread(self, strategy: Strategy, gpus: int, accumulation: int) -> Footprint:
        found = self._of(strategy, accumulation)
        if not strategy.startswith("fsdp"):
            return found
        shards = min(gpus, GPUS_PER_HOST) if strategy == "fsdp-hybrid" else gpus
        return found.spread(shards / FEWEST)

    def _of(self, strategy: Strategy, accumulation: int) -> Footprint:
        sharding = Sharding(
            ranks=FEWEST,
            keeps_parameters=strategy == "fsdp-gradients",
            computing=self._computing,
        )
        # With a third micro-batch nothing is there that was not with the second.
        turns = min(accumulation, 2)
        return self._step(sharding if strategy.startswith("fsdp") else None, turns)

    def _footprint(
        self, step: Callable[..., Footprint], sharding: Sharding | None, accumulation: int
    ) -> Footprint:
        try:
            return step(sharding=sharding, accumulation=accumulation)
        except RuntimeError as error:
            # torch says it in many ways; all of them are RuntimeErrors.
            said = str(error).strip().splitlines()[0]
            raise DoctorError(
                f"{self._name} cannot be run without data ({said}): give what you know of it, "
                "--params, --activations and --layers"
            ) from None


def _parts(found: Footprint, gpus: int, buckets: int = 0) -> MemoryParts:
    parts = found.peak.parts

    def of(*names: str) -> int:
        return sum(parts.get(name, 0) for name in names)

    return MemoryParts(
        parameters=of("Parameter", "Sharded Param", "Buffer"),
        gradients=of("Gradient", "Sharded Grad"),
        optimizer=found.states,
        activations=of("Activation", "Other", "Inputs"),
        temporaries=of("Temp", "Optstate", "OptState") - found.states + WORKSPACE,
        communication=buckets
        + of("Unsharded Param", "Unsharded Grad", "All Gather", "Reduce Scatter"),
        unused=max(0, replay(found.sizes).reserved - sum(parts.values())),
        context=CONTEXT + (LIBRARY if gpus > 1 else 0),
    )
