"""The tables of GPUs, links, healthy all-reduce bandwidths and the Xid codes of NVIDIA's driver."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from ddoctor.evidence.section import Known, Part

# busbw keeps climbing to 1 GiB: 8×H200 show 436 GB/s at 256 MiB, 464 at 1 GiB, 482 at 16 GiB
# (ml-engineering, network/benchmarks). PCIe is steady long before.
PLATEAU_FROM = 2**30


class GpuModel(Part, frozen=True, kw_only=True):
    """One GPU model; ``gpus.toml`` explains the fields. None: no source was found."""

    name: str
    names: tuple[str, ...]
    memory: float
    memory_bandwidth: float | None = None
    copied: float | None = None
    fp8: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    fp32: float | None = None
    tf32: float | None = None
    achievable: float | None = None
    sustained: float | None = None
    multiprocessors: int | None = None
    nvlink: float | None = None
    bridge: bool = False
    pcie: int | None = None
    power: float | None = None
    sources: tuple[str, ...]


class GpuModels(Known, frozen=True, kw_only=True):
    """GPU models with the figures of vendors and other sources."""

    table = "gpus.toml"

    sources: Mapping[str, str]
    models: tuple[GpuModel, ...]

    def find(self, name: str) -> GpuModel | None:
        """The model with this device name of NVML or torch."""
        return next(
            (
                model
                for model in self.models
                if any(re.fullmatch(pattern, name) for pattern in model.names)
            ),
            None,
        )


class NvLinkKind(Part, frozen=True, kw_only=True):
    """One generation of NVLink, in GB/s per link and direction."""

    capability: tuple[int, int]
    planned: float
    wire: float | None = None
    source: str


class PcieKind(Part, frozen=True, kw_only=True):
    """One generation of PCIe with 16 lanes, in GB/s per direction."""

    generation: int
    planned: float
    wire: float
    source: str


class Links(Known, frozen=True, kw_only=True):
    """The bandwidth that NCCL plans for each kind of link."""

    table = "links.toml"

    sources: Mapping[str, str]
    nvlinks: tuple[NvLinkKind, ...]
    pcie: tuple[PcieKind, ...]

    def nvlink(self, capability: tuple[int, int]) -> NvLinkKind | None:
        """The NVLink generation of a GPU with this compute capability."""
        fitting = [kind for kind in self.nvlinks if kind.capability <= capability]
        return max(fitting, key=lambda kind: kind.capability, default=None)


class Expected(Part, frozen=True, kw_only=True):
    """Bus bandwidth of healthy machines at large messages, GB/s."""

    published: tuple[float, float]
    warn: float
    bad: float
    sources: tuple[str, ...]
    model: str = ""
    ranks: int = 0
    algorithm: str = ""
    sharp: bool = False
    generation: int = 0
    """PCIe generation, if the data uses PCIe; 0: it does not."""
    points: tuple[tuple[int, float], ...] = ()
    """GB/s over message size (bytes) on one machine; empty: not published."""
    points_source: str = ""

    def at(self, size: int) -> float:
        """The bandwidth in GB/s at a size, interpolated over the logarithm of the size."""
        for (low, slow), (high, fast) in pairwise(self.points):
            if low <= size <= high:
                share = math.log(size / low) / math.log(high / low)
                return slow + share * (fast - slow)
        return self.points[0][1] if size < self.points[0][0] else self.points[-1][1]


class NetworkKind(Part, frozen=True, kw_only=True):
    """Bus bandwidth of healthy clusters at large messages, GB/s."""

    models: tuple[str, ...]
    adapters: int
    """Number of network adapters per host."""
    gigabits: int
    """Speed of one adapter, Gbit/s."""
    published: tuple[float, float]
    sources: tuple[str, ...]


class AllReduceFigures(Known, frozen=True, kw_only=True):
    """All-reduce bandwidth within healthy nodes, and between them."""

    table = "allreduce.toml"

    sources: Mapping[str, str]
    expected: tuple[Expected, ...]
    over_pcie: tuple[Expected, ...]
    networks: tuple[NetworkKind, ...]

    def find(self, model: str, ranks: int, algorithm: str | None) -> Expected | None:
        """The row for these GPUs; for an unknown algorithm, the row with the lowest threshold."""
        rows = [row for row in self.expected if (row.model, row.ranks) == (model, ranks)]
        told = [row for row in rows if row.algorithm == algorithm]
        return min(told or rows, key=lambda row: row.warn, default=None)

    def pcie(self, generation: int) -> Expected | None:
        """The row for GPUs that reach each other over this PCIe generation."""
        return next((row for row in self.over_pcie if row.generation == generation), None)

    def network(self, model: str) -> NetworkKind | None:
        """The row for hosts with these GPUs."""
        return next((row for row in self.networks if model in row.models), None)

    def due(self, row: Expected, size: int) -> float | None:
        """The share of a row's bandwidth that this message size must reach; None: not known."""
        if row.generation or size >= PLATEAU_FROM:
            return 1.0
        return row.at(size) / row.points[-1][1] if row.points else None

    def source(self, keys: Sequence[str]) -> str:
        """The sources of a row, as an observation cites them."""
        return ", ".join(self.sources[key] for key in keys)


class Xid(Part, frozen=True, kw_only=True):
    """One code of NVIDIA's catalogue."""

    code: int
    title: str
    blames: Literal["board", "memory", "nvlink", "gpu-or-driver", "application", "information"]
    remedy: Literal["restart-run", "reset-gpu", "restart-machine", "check-power", "none"]
    """NVIDIA's immediate action for the code."""
    source: str


class KnownXids(Known, frozen=True, kw_only=True):
    """The codes that show on their own whether hardware is at fault."""

    table = "xids.toml"

    xids: tuple[Xid, ...]

    def get(self, code: int) -> Xid | None:
        """The row of a code; None: not in the table."""
        return next((xid for xid in self.xids if xid.code == code), None)


class NvmlNames(Known, frozen=True, kw_only=True):
    """The names of NVML's numbers; ``nvml.toml`` explains the fields."""

    table = "nvml.toml"

    throttle_reasons: tuple[tuple[int, str], ...]
    recovery_actions: tuple[str, ...]
    peer_statuses: tuple[str, ...]
    paths: tuple[tuple[int, str], ...]
    fabric_trouble: tuple[tuple[int, str], ...]
