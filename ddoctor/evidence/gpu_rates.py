"""What the GPUs of a host moved while the ranks on it were looked at."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section


class GpuTraffic(Part, frozen=True, kw_only=True):
    """One GPU, whoever used it; MiB/s as the GPU receives and sends. None: it does not tell."""

    index: int
    """As nvidia-smi counts."""
    pcie_received: float | None = None
    pcie_sent: float | None = None
    nvlink_received: float | None = None
    """Over all its links together, without the protocol's own."""
    nvlink_sent: float | None = None


class GpuRates(Section, frozen=True, kw_only=True):
    """Means over a moment at the end of the look."""

    of_attaching: ClassVar[bool] = True

    gpus: tuple[GpuTraffic, ...]
