"""Data that the GPUs of a host transferred while ddoctor sampled the ranks."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command


class GpuTraffic(Part, frozen=True, kw_only=True):
    """One GPU, all processes together, in MiB/s; None: the GPU does not report it."""

    index: int
    """Index in nvidia-smi."""
    pcie_received: float | None = None
    pcie_sent: float | None = None
    nvlink_received: float | None = None
    """MiB/s over all its NVLinks, without protocol overhead."""
    nvlink_sent: float | None = None


class GpuRates(Section, frozen=True, kw_only=True):
    """Mean rates over a short interval at the end of the sampling."""

    commands: ClassVar[tuple[Command, ...]] = ("attach",)

    gpus: tuple[GpuTraffic, ...]
