"""The memory of a step by closed form: from the number of parameters, without the model.

Bytes for each parameter as in ml-engineering, training/performance, "Anatomy of Model's Memory
Usage". Coarse: fragmentation, the largest temporaries and the distribution of activations are
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ddoctor.evidence.plan import (
    GPUS_PER_HOST,
    NO_PARALLELISM,
    Checkpointing,
    MemoryParts,
    ModelParallel,
    Remedy,
    Strategy,
    Way,
)
from ddoctor.forecast.optimizers import OPTIMIZERS, each
from ddoctor.forecast.options import Precision
from ddoctor.memory_tracking.work import StepWork

WEIGHT: Mapping[Precision, int] = {"fp32": 4, "bf16-mixed": 4, "fp16-mixed": 4, "bf16": 2}
"""Bytes of a parameter, and also of its gradient."""
COMPUTING: Mapping[Precision, int] = {"fp32": 4, "bf16-mixed": 2, "fp16-mixed": 2, "bf16": 2}
"""Bytes of a parameter in the layers' computing dtype."""
# Measured on an A100 by ml-engineering: 0.45 to 0.92 GiB for CUDA itself, and 1.45 more once
# torch.distributed has connected to the other ranks.
CONTEXT, LIBRARY = round(0.92 * 2**30), round(1.45 * 2**30)
# Of one published script of closed forms a row is right to 0.5 %, others are 20 GB or more too
# low; estimates from shapes alone were below the truth in 86 % of 5,085 runs, by 46 % in the
# median.
DOUBT = 1.4
# FSDP gathers two units at a time: the current one and the next.
GATHERED = 2
USUAL_LAYERS = 32


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes to and from a GPU for one micro-batch, by the dimension of model parallelism."""

    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    pipeline: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is known of a model without building it."""

    parameters: float
    trainable: float
    precision: Precision
    optimizer: str
    activations: int = 0
    """Bytes of activations of one micro-batch."""
    layers: int = USUAL_LAYERS
    """Units of equal size that FSDP would wrap."""
    blocks: tuple[str, ...] = ()
    """The classes of these units; empty: not known."""
    work: StepWork | None = None
    """The operators of a step with one micro-batch; None: not known."""
    forwards: int = 1
    """Forward passes of a micro-batch: 2 if a reference model runs as well."""
    name: str = ""
    """The model's name; empty: not known."""
    coarse: str = ""
    """Why no step of the model could be run."""
    traffic: Traffic = Traffic()
    """What the part of one GPU exchanges with other parts."""


@dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """One strategy on a number of GPUs."""

    strategy: Strategy
    gpus: int
    accumulation: int = 1
    """Micro-batches per optimizer step."""
    parallel: ModelParallel = NO_PARALLELISM

    @property
    def sharing(self) -> int:
        """GPUs with the same part of the model, and other tokens: FSDP shards over them."""
        return self.gpus // (self.parallel.tensor * self.parallel.pipeline)

    @property
    def shards(self) -> int:
        """GPUs that share one set of optimizer states; 1: each has all of its part."""
        if self.strategy == "fsdp-hybrid":
            return min(self.sharing, GPUS_PER_HOST // self.parallel.tensor)
        return self.sharing if self.strategy.startswith(("fsdp", "zero")) else 1

    @property
    def in_flight(self) -> int:
        """Micro-batches whose activations the first stage of a 1F1B pipeline keeps at a time."""
        return min(self.parallel.pipeline, self.accumulation)


class ClosedForm:
    """Forecasts from numbers alone; gradients count as if they always existed."""

    way: ClassVar[Way] = "closed form"
    doubt: ClassVar[float] = DOUBT
    """The real memory may be up to this many times the forecast."""
    checkpointing: Checkpointing = "none"
    sequence: int | None = None

    def __init__(self, model: Model) -> None:
        self._model = model

    def parts(self, row: ForecastRow) -> MemoryParts:
        """Return the memory of each GPU."""
        model = self._model
        weight, computing = WEIGHT[model.precision], COMPUTING[model.precision]
        context = CONTEXT + (LIBRARY if row.gpus > 1 else 0)
        activations = model.activations * row.in_flight
        # DDP's buckets add to the gradients (gradient_as_bucket_view is off by default).
        exchanged = model.trainable * weight
        sharded = row.strategy.startswith("fsdp")
        if sharded:
            unit, trained = model.parameters / model.layers, model.trainable / model.layers
            # torch's pipelines keep both whole until the last micro-batch of a step
            # (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync).
            pipelined = row.parallel.pipeline > 1
            whole = pipelined or row.strategy == "fsdp-gradients"
            exchanged = (model.parameters if whole else GATHERED * unit) + (
                model.trainable if pipelined else trained
            )
            exchanged *= computing
        if row.strategy == "fsdp-offload":
            # A unit's share on its way from the host, and its gradients' share on its way there.
            moved = (model.parameters + model.trainable) / model.layers * weight / row.shards
            return MemoryParts(
                activations=activations,
                communication=round(exchanged + moved),
                context=context,
            )
        shards = row.shards
        update = model.trainable * weight / shards if OPTIMIZERS[model.optimizer].update else 0.0
        # Autocast keeps its copies of trained parameters until the end of the forward pass; FSDP
        # casts the gathered parameters.
        casts = 0.0 if sharded or computing == weight else model.trainable * computing
        return MemoryParts(
            parameters=round(model.parameters * weight / shards),
            gradients=round(model.trainable * weight / shards),
            optimizer=round(model.trainable * each(model.optimizer, weight) / shards),
            activations=activations,
            temporaries=round(max(casts, update - activations, 0.0)),
            communication=round(exchanged) if row.sharing > 1 else 0,
            context=context,
        )

    def host(self, row: ForecastRow) -> int:
        """Return bytes of parameters, gradients and states that FSDP keeps in host memory."""
        if row.strategy != "fsdp-offload":
            return 0
        shares = self.parts(replace(row, strategy="fsdp"))
        return shares.parameters + shares.gradients + shares.optimizer

    def nvme(self, row: ForecastRow) -> int:
        """Return 0: FSDP keeps nothing on NVMe."""
        return 0

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """Return the GPU memory that CPU offload saves."""
        if row.strategy == "fsdp-offload" or not OPTIMIZERS[self._model.optimizer].on_cpu:
            return {}
        offloaded = self.parts(replace(row, strategy="fsdp-offload"))
        return {"offload": self.parts(row).total - offloaded.total}

    def moment(self, row: ForecastRow) -> str:
        """Return empty: the moment of the peak is not known."""
        return ""
