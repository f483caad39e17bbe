"""The memory of a step by closed form: from the number of parameters, without the model.

Bytes for each parameter as in ml-engineering, training/performance, "Anatomy of Model's Memory
Usage". Coarse: fragmentation, the largest temporaries and the distribution of activations are
unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ddoctor.evidence.plan import GPUS_PER_HOST, MemoryParts, Remedy, Strategy, Way
from ddoctor.forecast.forecaster import Forecaster, ForecastRow

Precision = Literal["fp32", "bf16-mixed", "fp16-mixed", "bf16"]
Optimizer = Literal["adamw", "adamw-fp32", "adamw-8bit", "sgd", "adafactor"]

ON_CPU: Collection[Optimizer] = ("adamw", "adamw-fp32", "sgd", "adafactor")
"""Optimizers whose step can run on the CPU; 8-bit kernels exist for CUDA only."""
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
class Model:
    """What is known of a model without building it."""

    parameters: float
    trainable: float
    precision: Precision
    optimizer: Optimizer
    activations: int = 0
    """Bytes of activations of one micro-batch."""
    layers: int = USUAL_LAYERS
    """Units of equal size that FSDP would wrap."""
    blocks: tuple[str, ...] = ()
    """The classes of these units; empty: not known."""
    flops: float = 0.0
    """FLOPs of the forward and backward pass of one micro-batch; 0: not known."""
    name: str = ""
    """The model's name; empty: not known."""
    coarse: str = ""
    """Why no step of the model could be run."""


class ClosedForm(Forecaster):
    """Forecasts from numbers alone; gradients count as if they always existed."""

    way: ClassVar[Way] = "closed form"
    doubt: ClassVar[float] = DOUBT

    def __init__(self, model: Model) -> None:
        self.model = model

    def parts(self, row: ForecastRow) -> MemoryParts:
        """Return the memory of each GPU."""
        return parts(self.model, row.strategy, row.gpus)

    def host(self, row: ForecastRow) -> int:
        """Return bytes of parameters, gradients and states that FSDP keeps in host memory."""
        return kept(self.model, row.gpus) if row.strategy == "fsdp-offload" else 0

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """Return the GPU memory that CPU offload saves."""
        if row.strategy == "fsdp-offload" or self.model.optimizer not in ON_CPU:
            return {}
        offloaded = parts(self.model, "fsdp-offload", row.gpus)
        return {"offload": self.parts(row).total - offloaded.total}


def parts(model: Model, strategy: Strategy, gpus: int) -> MemoryParts:
    """Return the memory of each of this number of GPUs."""
    weight, computing = WEIGHT[model.precision], COMPUTING[model.precision]
    if strategy == "fsdp-offload":
        return MemoryParts(
            activations=model.activations,
            communication=round(_exchanged(model, strategy) + _moved(model, gpus)),
            context=CONTEXT + (LIBRARY if gpus > 1 else 0),
        )
    sharded = strategy.startswith("fsdp")
    shards = min(gpus, GPUS_PER_HOST) if strategy == "fsdp-hybrid" else gpus if sharded else 1
    states = model.trainable * _states(model.optimizer, weight)
    # torch's AdamW creates all updates at once (foreach, the default on CUDA).
    update = model.trainable * weight / shards if model.optimizer.startswith("adamw") else 0.0
    # Autocast keeps its copies of trained parameters until the end of the forward pass; FSDP casts
    # the gathered parameters.
    casts = 0.0 if sharded or computing == weight else model.trainable * computing
    return MemoryParts(
        parameters=round(model.parameters * weight / shards),
        gradients=round(model.trainable * weight / shards),
        optimizer=round(states / shards),
        activations=model.activations,
        temporaries=round(max(casts, update - model.activations, 0.0)),
        communication=round(_exchanged(model, strategy)) if gpus > 1 else 0,
        context=CONTEXT + (LIBRARY if gpus > 1 else 0),
    )


def kept(model: Model, gpus: int) -> int:
    """Return bytes of each rank's share of parameters, gradients and states, on GPU or host."""
    shares = parts(model, "fsdp", gpus)
    return shares.parameters + shares.gradients + shares.optimizer


def _moved(model: Model, gpus: int) -> float:
    """Return bytes of a unit's share on its way from the host, and of its gradients to the host."""
    weight = WEIGHT[model.precision]
    return (model.parameters + model.trainable) / model.layers * weight / gpus


def _states(optimizer: Optimizer, weight: int) -> float:
    """Return bytes of optimizer states per trained parameter."""
    if optimizer == "adamw":
        return 2 * weight
    if optimizer == "sgd":
        return weight  # its momentum
    # Adafactor keeps a row and a column of each matrix.
    return {"adamw-fp32": 8.0, "adamw-8bit": 2.0, "adafactor": 0.0}[optimizer]


def _exchanged(model: Model, strategy: Strategy) -> float:
    weight, computing = WEIGHT[model.precision], COMPUTING[model.precision]
    if strategy in ("one-gpu", "ddp"):
        # DDP's buckets add to the gradients (gradient_as_bucket_view is off by default).
        return model.trainable * weight
    unit, trained = model.parameters / model.layers, model.trainable / model.layers
    gathered = model.parameters if strategy == "fsdp-gradients" else GATHERED * unit
    return (gathered + trained) * computing
