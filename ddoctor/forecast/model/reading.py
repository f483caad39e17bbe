"""What the closed form needs to know of a model, read off the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ddoctor.errors import DoctorError
from ddoctor.forecast.closed_form import Precision
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.materials import on_meta
from ddoctor.forecast.model.step import footprint

# A usual length, where the model allows it.
USUAL_LENGTH = 2048
# It has no states: what the optimizer keeps is counted by itself.
SGD = partial(torch.optim.SGD, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One micro-batch of one model."""

    parameters: int
    trainable: int
    activations: int
    """Bytes, without the copies of weights that autocast keeps."""
    layers: int
    """The longest row of equal blocks."""
    length: int


def read(blueprint: Blueprint, precision: Precision, samples: int, length: int | None) -> Reading:
    """By a step on fake tensors.

    Raises:
        DoctorError: the model allows no sequence of this length, or its forward pass depends on
            the values that it computes.
    """
    longest = blueprint.longest
    if length is not None and longest is not None and length > longest:
        raise DoctorError(f"--sequence {length}: {blueprint.name} allows {longest} at most")
    length = length or min(USUAL_LENGTH, longest or USUAL_LENGTH)
    pure = precision == "bf16"
    mixed = precision.endswith("mixed")

    def build() -> nn.Module:
        model = blueprint.build()
        return model.to(torch.bfloat16) if pure else model

    try:
        found = footprint(
            build,
            partial(blueprint.batch, samples, length),
            SGD,
            # Half a float is as large in float16.
            autocast=torch.bfloat16 if mixed else None,
        )
    except RuntimeError as error:
        # torch says it in many ways; all of them are RuntimeErrors.
        said = str(error).strip().splitlines()[0]
        raise DoctorError(
            f"{blueprint.name} cannot be run without data ({said}): give what you know of it, "
            "--params, --activations and --layers"
        ) from None
    model = on_meta(build)
    parts = found.parts
    used = parts["Activation"] + parts["Temp"] + parts["Other"] + found.operators
    return Reading(
        parameters=found.parameters,
        trainable=found.trainable,
        activations=max(0, used - (_casts(model) if mixed else 0)),
        layers=_layers(model),
        length=length,
    )


def _casts(model: nn.Module) -> int:
    """Bytes of the copies that autocast makes of trained weights, and keeps."""
    return sum(
        torch.bfloat16.itemsize * module.weight.numel()
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and module.weight.requires_grad
    )


def _layers(model: nn.Module) -> int:
    rows = (len(one) for one in model.modules() if isinstance(one, nn.ModuleList | nn.Sequential))
    return max(rows, default=1)
