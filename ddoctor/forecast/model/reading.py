"""What a plan says of a model itself, and for which length of its samples."""

from __future__ import annotations

from dataclasses import dataclass

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.blueprint import Blueprint, said
from ddoctor.forecast.model.fake_tensors import on_meta
from ddoctor.memory_tracking.blocks import rows

# A usual length, where the model allows it.
USUAL_LENGTH = 2048


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """A model, without a step of it."""

    parameters: int
    trainable: int
    layers: int
    """The longest row of equal blocks."""
    blocks: tuple[str, ...]
    """Their class; of an encoder with a decoder, those of both."""
    length: int


def read(blueprint: Blueprint, length: int | None) -> ModelReading:
    """From the model as it is built, without weights.

    Raises:
        DoctorError: the model allows no sequence of this length, or cannot be built.
    """
    longest = blueprint.longest
    if length is not None and longest is not None and length > longest:
        raise DoctorError(f"--sequence {length}: {blueprint.name} allows {longest} at most")
    try:
        model = on_meta(blueprint.build)
    except DoctorError:
        raise
    except Exception as error:  # the model's own code, to which its config may not fit
        raise DoctorError(f"{blueprint.name} cannot be built: {said(error)}") from None
    found = tuple(rows(model))
    return ModelReading(
        parameters=sum(one.numel() for one in model.parameters()),
        trainable=sum(one.numel() for one in model.parameters() if one.requires_grad),
        layers=max(map(len, found), default=1),
        blocks=tuple(dict.fromkeys(type(row[0]).__name__ for row in found)),
        length=length or min(USUAL_LENGTH, longest or USUAL_LENGTH),
    )
