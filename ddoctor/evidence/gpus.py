"""NVIDIA GPUs as NVML reports them, and GPU messages of the kernel log."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Part, Section

FabricState = Literal["not_supported", "not_started", "in_progress", "completed"]

BUSY_PERCENT = 50
"""Percent of utilisation: a kernel ran in at least half of the last sample period."""

SLOWEST_BUSY_STATE = 2
"""Compute runs in P0, on GeForce cards in P2 (nvidia-smi's manual, "Performance State")."""


class GpuProcess(Part, frozen=True, kw_only=True):
    """A process that holds memory on a GPU."""

    pid: int
    memory: int | None = None
    """Bytes; None: NVML does not report it (container, WSL)."""
    name: str = ""
    user: str = ""
    holder: Literal["own", "foreign", "orphan", "hidden", "unknown"]
    """own: a process of this user. foreign: of another user. orphan: of this user, idle and without
    a parent that waits for it. hidden: in another container, invisible from here. unknown: what
    was printed does not say it."""
    idle: bool | None = None
    """Whether it used no CPU time between two readings; None: not visible."""


class NvLink(Part, frozen=True, kw_only=True):
    """One NVLink of a GPU."""

    index: int
    active: bool
    remote: str = ""
    """The other end: ``switch``, ``cpu`` or a GPU's bus id; empty: not reported."""
    errors: int | None = None
    """Replays, recoveries and CRC errors together, since the driver was loaded."""


class PcieLink(Part, frozen=True, kw_only=True):
    """The PCIe link as it is trained now, and the maximum of device and slot together."""

    generation: int | None = None
    width: int | None = None
    maximum_generation: int | None = None
    maximum_width: int | None = None
    replays: int | None = None
    """Link-level retransmissions since the driver was loaded."""
    upstream: tuple[str, ...] = ()
    """Bus ids of the bridges between this GPU and the processor, root port first."""


class Gpu(Part, frozen=True, kw_only=True):
    """One GPU. Memory in bytes, clocks in MHz, power in watts, temperature in °C."""

    index: int
    """Index in nvidia-smi, in the order of bus ids."""
    uuid: str = ""
    name: str
    bus_id: str = ""
    """PCI bus id in the kernel's form, say ``0000:1b:00.0``."""
    capability: tuple[int, int] | None = None
    memory_total: int
    """Bytes; 0: not reported, as for GPUs that share the host's memory."""
    memory_used: int
    memory_reserved: int = 0
    """Bytes that the driver reserves; not included in ``memory_used``."""
    processes: tuple[GpuProcess, ...] | None = None
    utilisation: int | None = None
    """Percent of the last sample period in which a kernel ran."""
    performance_state: int | None = None
    """0 is the fastest; an idle GPU drops to 8 or beyond on most models."""
    sm_clock: int | None = None
    sm_clock_maximum: int | None = None
    memory_clock: int | None = None
    memory_clock_maximum: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """NVML's names: sw_power_cap, hw_slowdown, hw_thermal_slowdown, gpu_idle, …"""
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
    """Whether rows or pages await remapping at the next reset."""
    remap_failed: bool | None = None
    recovery_action: str | None = None
    """The action that the driver requests: none, gpu_reset, node_reboot, drain_p2p, …"""
    pcie: PcieLink | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric_state: FabricState | None = None
    fabric_status: str = ""
    """NVML's name of the error that ended the registration; empty: none."""
    fabric_trouble: tuple[str, ...] = ()
    """Conditions in the fabric's health mask, say degraded_bandwidth or route_unhealthy."""
    mig: bool | None = None
    compute_mode: str = ""
    persistence: bool | None = None
    numa_node: int | None = None
    lost: bool = False
    """NVML answers GPU_IS_LOST, or only an error, for this device."""
    error: str = ""
    """NVML's name of that error."""

    @property
    def memory_free(self) -> int:
        """Free memory in bytes."""
        return self.memory_total - self.memory_used - self.memory_reserved

    @property
    def device(self) -> str:
        """Device name in ``Where.devices`` and the probes."""
        return f"cuda:{self.index}"

    @property
    def title(self) -> str:
        """Name in sentences: the index of nvidia-smi, and the bus id if it is known."""
        return f"GPU {self.index} ({self.bus_id})" if self.bus_id else f"GPU {self.index}"

    @property
    def busy(self) -> bool:
        """Whether it was awake and working when read: power saving explains no low state."""
        awake = self.performance_state is None or self.performance_state <= SLOWEST_BUSY_STATE
        return awake and (self.utilisation or 0) >= BUSY_PERCENT


class PeerPath(Part, frozen=True, kw_only=True):
    """Whether GPU ``a`` can reach GPU ``b`` directly, and over which path."""

    a: int
    b: int
    path: str
    """nvlink, pcie-switch (PIX, PXB), host-bridge (PHB), numa-node (NODE), system (SYS)."""
    read: str
    """NVML's P2P status for reads: ok, chipset_not_supported, disabled_by_regkey, …"""


class Nvml(Section, frozen=True, kw_only=True):
    """Whether NVML answers; it is the first to fail after a driver update."""

    state: Literal["ok", "no-library", "failed"]
    error: str = ""
    """NVML's name of the error, say LIB_RM_VERSION_MISMATCH."""
    module_version: str = ""
    """Version of the loaded kernel module (/proc/driver/nvidia/version)."""
    library_version: str = ""
    """Version of the installed NVML library, from its file name."""
    device_nodes: tuple[str, ...] = ()
    pci_gpus: tuple[str, ...] = ()
    """Bus ids of NVIDIA display controllers on the machine's PCI bus, also inside a container."""


class Gpus(Section, frozen=True, kw_only=True):
    """All GPUs of a host."""

    commands = ("doctor", "probe", "run", "attach", "diagnose")

    driver: str = ""
    """Driver version, say 570.86.15; empty: not known."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA version that this driver can run."""
    gpus: tuple[Gpu, ...]
    peers: tuple[PeerPath, ...] | None = None

    @property
    def answering(self) -> tuple[Gpu, ...]:
        """The GPUs that answer NVML's queries."""
        return tuple(gpu for gpu in self.gpus if not gpu.lost)

    def alike(self, gpu: Gpu) -> tuple[Gpu, ...]:
        """The other GPUs of the same model, whose state should be equal."""
        return tuple(
            other
            for other in self.answering
            if gpu.name and other.name == gpu.name and other.index != gpu.index
        )


class XidEvent(Part, frozen=True, kw_only=True):
    """One NVRM Xid line of the kernel log."""

    bus_id: str
    """PCI bus id, as in ``Gpu.bus_id``."""
    code: int
    text: str
    age: float | None = None
    """Seconds from the event to the reading."""


class PcieErrors(Part, frozen=True, kw_only=True):
    """Advanced Error Reporting messages about one PCIe device, of one severity."""

    bus_id: str
    severity: Literal["corrected", "nonfatal", "fatal"]
    count: int
    """Number of messages."""
    span: float | None = None
    """Seconds from the first message to the last."""
    age: float | None = None
    """Seconds from the last message to the reading."""


class KernelLog(Section, frozen=True, kw_only=True):
    """Kernel log messages about GPUs and about processes killed for lack of memory."""

    commands = ("doctor", "probe", "run", "attach", "diagnose")

    source: str
    """Where it was read: /dev/kmsg, journalctl or a file."""
    xids: tuple[XidEvent, ...] = ()
    pcie_errors: tuple[PcieErrors, ...] = ()
    oom_kills: tuple[str, ...] = ()
