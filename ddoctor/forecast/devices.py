"""Finds a GPU by its common names, with the memory that a process gets of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddoctor import knowledge
from ddoctor.errors import unknown
from ddoctor.evidence.known_hardware import GpuModel, GpuModels

# The nominal size is in GiB, and torch reports a few per cent less: 79.15 of an A100's 80.
USABLE = 0.98
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class PlannedGpu:
    """The GPU of a plan."""

    name: str
    memory: int
    """Bytes that a process can use."""
    model: GpuModel | None = None
    """Its row in the table of GPUs, if known."""


def find(name: str) -> PlannedGpu:
    """Return the GPU of a name such as ``h100-80``, ``h100``, ``rtx-4090`` or ``A100 40GB SXM``.

    Raises:
        DoctorError: no table knows it.
    """
    known = _aliases()
    model = known.get(_plain(name))
    if model is None:
        raise unknown("GPU", _plain(name), known, "or pass its memory: --device-memory 24GiB")
    return PlannedGpu(name=model.name, memory=round(model.memory * GIB * USABLE), model=model)


def _aliases() -> Mapping[str, GpuModel]:
    """Return models by short name; a name that several models share means the table's first."""
    found: dict[str, GpuModel] = {}
    for model in knowledge.load(GpuModels).models:
        whole, size = _plain(model.name), f"{model.memory:.0f}"
        without = re.sub(r"-\d+gb", "", whole)
        family = without.removesuffix("-sxm").removesuffix("-sxm2").removesuffix("-pcie")
        for alias in (whole, without, f"{family}-{size}", f"{family}-{size}gb", family):
            found.setdefault(alias, model)
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
