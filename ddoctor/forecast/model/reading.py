"""Reads a model's size and blocks, and sets the length of its samples."""

from __future__ import annotations

from dataclasses import dataclass

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.blueprint import Blueprint, said
from ddoctor.forecast.model.fake_tensors import on_meta
from ddoctor.memory_tracking.blocks import rows

# A usual length, if the model allows it.
USUAL_LENGTH = 2048


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """A model's figures that need no step."""

    parameters: int
    trainable: int
    layers: int
    """The length of the longest row of equal blocks."""
    blocks: tuple[str, ...]
    """The blocks' classes: one, or two of a model with encoder and decoder."""
    length: int


def read(blueprint: Blueprint, length: int | None) -> ModelReading:
    """Read the model, built without weights.

    Raises:
        DoctorError: the model allows no sequence of this length, or cannot be built.
    """
    longest = blueprint.longest
    if length is not None and longest is not None and length > longest:
        raise DoctorError(f"--sequence {length}: {blueprint.name} allows at most {longest}")
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
