"""NVIDIA GPUs as NVML tells them, and what the kernel log says about them."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Part, Section


class GpuProcess(Part, frozen=True, kw_only=True):
    """A process that holds memory on a GPU."""

    pid: int
    memory: int | None = None
    """Bytes; None: NVML does not tell (a container, WSL)."""
    name: str = ""
    user: str = ""
    holder: Literal["own", "foreign", "orphan", "hidden"]
    """own: this user's; foreign: another's; orphan: this user's and without a parent that waits for
    it, idle; hidden: a process that cannot be seen from here (another container)."""
    idle: bool | None = None
    """No CPU time used between two looks; None: could not be seen."""


class NvLink(Part, frozen=True, kw_only=True):
    """One NVLink of a GPU."""

    index: int
    active: bool
    version: int | None = None
    remote: str = ""
    """Bus id of the other end, or ``switch``."""
    errors: int | None = None


class PcieLink(Part, frozen=True, kw_only=True):
    """PCIe as trained now, and as device and slot could."""

    generation: int | None = None
    width: int | None = None
    maximum_generation: int | None = None
    maximum_width: int | None = None
    replays: int | None = None


class Gpu(Part, frozen=True, kw_only=True):
    """One GPU. Memory in bytes, clocks in MHz, power in watts, temperature in °C."""

    index: int
    uuid: str = ""
    name: str
    bus_id: str = ""
    capability: tuple[int, int] | None = None
    memory_total: int
    memory_used: int
    processes: tuple[GpuProcess, ...] | None = None
    utilisation: int | None = None
    """Percent of the last sample period in which a kernel ran."""
    sm_clock: int | None = None
    sm_clock_maximum: int | None = None
    memory_clock: int | None = None
    memory_clock_maximum: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """As NVML names them: sw_power_cap, hw_slowdown, sw_thermal_slowdown, hw_thermal_slowdown,
    hw_power_brake_slowdown, applications_clocks_setting, sync_boost, display_clocks, gpu_idle."""
    power: float | None = None
    power_limit: float | None = None
    power_default: float | None = None
    temperature: int | None = None
    temperature_slowdown: int | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    ecc_corrected_volatile: int | None = None
    rows_remapped: int | None = None
    """Rows remapped because of uncorrectable errors."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie: PcieLink | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric_state: Literal["not_supported", "not_started", "in_progress", "completed"] | None = None
    fabric_status: str = ""
    mig: bool | None = None
    compute_mode: str = ""
    persistence: bool | None = None
    numa_node: int | None = None
    lost: bool = False
    """NVML answers GPU_IS_LOST, or only an error, for this device."""

    @property
    def memory_free(self) -> int:
        """Bytes."""
        return self.memory_total - self.memory_used


class PeerPath(Part, frozen=True, kw_only=True):
    """Whether GPU ``a`` can reach GPU ``b`` directly, and over what."""

    a: int
    b: int
    path: str
    """nvlink, pcie-switch (PIX, PXB), host-bridge (PHB), numa-node (NODE), system (SYS)."""
    read: str
    """NVML's P2P status for reads: ok, chipset_not_supported, disabled_by_regkey, …"""


class Nvml(Section, frozen=True, kw_only=True):
    """Whether NVML answers: the first thing that fails after a driver update."""

    state: Literal["ok", "no-library", "failed"]
    error: str = ""
    """NVML's own name of the error, say DRIVER/LIBRARY_VERSION_MISMATCH."""
    module_version: str = ""
    """Of the loaded kernel module (/proc/driver/nvidia/version)."""
    library_version: str = ""
    """Of the NVML library that was found, from its file name."""
    device_nodes: tuple[str, ...] = ()


class Gpus(Section, frozen=True, kw_only=True):
    """All GPUs of a host."""

    driver: str
    """Driver version, say 570.86.15."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that this driver can run."""
    gpus: tuple[Gpu, ...]
    peers: tuple[PeerPath, ...] | None = None


class XidEvent(Part, frozen=True, kw_only=True):
    """One NVRM Xid line of the kernel log."""

    bus_id: str
    code: int
    text: str
    age: float | None = None
    """Seconds before the look."""


class KernelLog(Section, frozen=True, kw_only=True):
    """What the kernel log says about GPUs and about processes killed for memory."""

    source: str
    """Where it was read: /dev/kmsg, journalctl, a file."""
    xids: tuple[XidEvent, ...] = ()
    pcie_errors: tuple[str, ...] = ()
    oom_kills: tuple[str, ...] = ()
