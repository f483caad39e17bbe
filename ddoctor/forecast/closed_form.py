"""The memory of a step by arithmetic alone: from the number of parameters, without the model.

Bytes for each parameter as in ml-engineering, training/performance, "Anatomy of Model's Memory
Usage". Coarse: what the allocator cannot use, the largest temporaries and the spread of
activations are unknown.
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
"""Those whose step can be computed there; the kernels of 8 bits are CUDA's."""
WEIGHT: Mapping[Precision, int] = {"fp32": 4, "bf16-mixed": 4, "fp16-mixed": 4, "bf16": 2}
"""Bytes of a parameter, and of its gradient."""
COMPUTING: Mapping[Precision, int] = {"fp32": 4, "bf16-mixed": 2, "fp16-mixed": 2, "bf16": 2}
"""Bytes of a parameter as the layers use it."""
# Measured on an A100 by ml-engineering: 0.45 to 0.92 GiB for CUDA itself, and 1.45 more once
# torch.distributed has met the others.
CONTEXT, LIBRARY = round(0.92 * 2**30), round(1.45 * 2**30)
# Of one published script of closed forms a row is right to 0.5 %, others are 20 GB and more too
# low; estimates from shapes alone were below the truth in 86 % of 5,085 runs, by 46 % in the
# median.
DOUBT = 1.4
# Two units of FSDP are gathered at a time: the one that computes, and the next.
GATHERED = 2
USUAL_LAYERS = 32


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is known of a model without having it."""

    parameters: float
    trainable: float
    precision: Precision
    optimizer: Optimizer
    activations: int = 0
    """Bytes, of one micro-batch."""
    layers: int = USUAL_LAYERS
    """Units of equal size that FSDP would wrap."""
    blocks: tuple[str, ...] = ()
    """The classes of these units; empty: nobody told."""
    flops: float = 0.0
    """Of the forward and backward pass of one micro-batch; 0: not known."""
    name: str = ""
    """Empty: nobody told."""
    coarse: str = ""
    """Why no step of it could be made."""


class ClosedForm(Forecaster):
    """From numbers alone; gradients are counted as if they always were there."""

    way: ClassVar[Way] = "closed form"
    doubt: ClassVar[float] = DOUBT

    def __init__(self, model: Model) -> None:
        self.model = model

    def parts(self, row: ForecastRow) -> MemoryParts:
        """What lies on each GPU."""
        return parts(self.model, row.strategy, row.gpus)

    def host(self, row: ForecastRow) -> int:
        """What FSDP keeps there of parameters, gradients and states."""
        return kept(self.model, row.gpus) if row.strategy == "fsdp-offload" else 0

    def gains(self, row: ForecastRow) -> Mapping[Remedy, int]:
        """What lies on the CPU instead."""
        if row.strategy == "fsdp-offload" or self.model.optimizer not in ON_CPU:
            return {}
        offloaded = parts(self.model, "fsdp-offload", row.gpus)
        return {"offload": self.parts(row).total - offloaded.total}


def parts(model: Model, strategy: Strategy, gpus: int) -> MemoryParts:
    """What lies on each of so many GPUs."""
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
    # torch's AdamW makes a list of all updates at once (foreach, the default on CUDA).
    update = model.trainable * weight / shards if model.optimizer.startswith("adamw") else 0.0
    # Autocast keeps its copies of trained parameters until the end of the forward pass; FSDP casts
    # what it gathers.
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
    """Bytes of each rank's share of parameters, gradients and states, wherever it lies."""
    shares = parts(model, "fsdp", gpus)
    return shares.parameters + shares.gradients + shares.optimizer


def _moved(model: Model, gpus: int) -> float:
    """A unit's share as it comes from the host, and of its gradients as they go there."""
    weight = WEIGHT[model.precision]
    return (model.parameters + model.trainable) / model.layers * weight / gpus


def _states(optimizer: Optimizer, weight: int) -> float:
    """Bytes for each trained parameter."""
    if optimizer == "adamw":
        return 2 * weight
    if optimizer == "sgd":
        return weight  # its momentum
    # Adafactor keeps a row and a column of each matrix.
    return {"adamw-fp32": 8.0, "adamw-8bit": 2.0, "adafactor": 0.0}[optimizer]


def _exchanged(model: Model, strategy: Strategy) -> float:
    weight, computing = WEIGHT[model.precision], COMPUTING[model.precision]
    if strategy in ("one-gpu", "ddp"):
        # DDP's buckets are beside the gradients (gradient_as_bucket_view is off by default).
        return model.trainable * weight
    unit, trained = model.parameters / model.layers, model.trainable / model.layers
    gathered = model.parameters if strategy == "fsdp-gradients" else GATHERED * unit
    return (gathered + trained) * computing
