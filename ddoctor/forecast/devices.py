"""A GPU by the names that people have for it, and how much memory a process gets of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddoctor import knowledge
from ddoctor.errors import unknown
from ddoctor.evidence.known_hardware import GpuModel, GpuModels

# What is printed on it counts in GiB, and torch reports a few per cent less: 79.15 of an A100's 80.
USABLE = 0.98
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class PlannedGpu:
    """What a plan is made for."""

    name: str
    memory: int
    """Bytes that a process can have."""
    model: GpuModel | None = None
    """What else is known of it."""


def find(name: str) -> PlannedGpu:
    """Say ``h100-80``, ``h100``, ``rtx-4090`` or ``A100 40GB SXM``.

    Raises:
        DoctorError: no table knows it.
    """
    known = _aliases()
    model = known.get(_plain(name))
    if model is None:
        raise unknown("GPU", _plain(name), known, "say how much it has: --device-memory 24GiB")
    return PlannedGpu(name=model.name, memory=round(model.memory * GIB * USABLE), model=model)


def _aliases() -> Mapping[str, GpuModel]:
    """Of several models that have a short name in common the table's first has it."""
    found: dict[str, GpuModel] = {}
    for model in knowledge.load(GpuModels).models:
        for alias in _names(model):
            found.setdefault(alias, model)
    return found


def _names(model: GpuModel) -> Iterator[str]:
    whole = _plain(model.name)
    yield whole
    without = re.sub(r"-\d+gb", "", whole)
    yield without
    family = without.removesuffix("-sxm").removesuffix("-sxm2").removesuffix("-pcie")
    yield f"{family}-{model.memory:.0f}"
    yield f"{family}-{model.memory:.0f}gb"
    yield family


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
