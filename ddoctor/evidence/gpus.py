"""NVIDIA GPUs as NVML tells them, and what the kernel log says about them."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Part, Section

BUSY_PERCENT = 50
"""Of utilisation: a kernel ran in at least half of the last sample period."""

SLOWEST_BUSY_STATE = 2
"""Compute runs in P0, on GeForce cards in P2 (nvidia-smi's manual, "Performance State")."""


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
    remote: str = ""
    """What is at the other end: ``switch``, ``cpu``, the bus id of a GPU; empty: not told."""
    errors: int | None = None
    """Replays, recoveries and CRC errors since the driver was loaded, together."""


class PcieLink(Part, frozen=True, kw_only=True):
    """PCIe as trained now, and as device and slot together could."""

    generation: int | None = None
    width: int | None = None
    maximum_generation: int | None = None
    maximum_width: int | None = None
    replays: int | None = None
    upstream: tuple[str, ...] = ()
    """Bus ids of the bridges between this GPU and the processor, the root port first."""


class Gpu(Part, frozen=True, kw_only=True):
    """One GPU. Memory in bytes, clocks in MHz, power in watts, temperature in °C."""

    index: int
    """As nvidia-smi counts, in the order of bus ids."""
    uuid: str = ""
    name: str
    bus_id: str = ""
    """As the kernel writes it, say ``0000:1b:00.0``."""
    capability: tuple[int, int] | None = None
    memory_total: int
    """0: not told, as of GPUs that share the host's memory."""
    memory_used: int
    memory_reserved: int = 0
    """What the driver keeps for itself; not in ``memory_used``."""
    processes: tuple[GpuProcess, ...] | None = None
    utilisation: int | None = None
    """Percent of the last sample period in which a kernel ran."""
    performance_state: int | None = None
    """0 is the fastest; a GPU without work drops to 8 or beyond on most models."""
    sm_clock: int | None = None
    sm_clock_maximum: int | None = None
    memory_clock: int | None = None
    memory_clock_maximum: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """As NVML names them: sw_power_cap, hw_slowdown, sw_thermal_slowdown, hw_thermal_slowdown,
    hw_power_brake_slowdown, applications_clocks_setting, sync_boost, display_clock_setting,
    gpu_idle."""
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
    """Rows to remap, or pages to retire, at the next reset."""
    remap_failed: bool | None = None
    recovery_action: str | None = None
    """What the driver itself asks for: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset,
    recover_imex_domain, bus_reset, system_reboot."""
    pcie: PcieLink | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric_state: Literal["not_supported", "not_started", "in_progress", "completed"] | None = None
    fabric_status: str = ""
    """NVML's name of the error with which the registration ended; empty: none."""
    fabric_trouble: tuple[str, ...] = ()
    """What the fabric's health mask says: degraded_bandwidth, route_recovery, route_unhealthy,
    access_timeout_recovery, incorrect_configuration."""
    mig: bool | None = None
    compute_mode: str = ""
    persistence: bool | None = None
    numa_node: int | None = None
    lost: bool = False
    """NVML answers GPU_IS_LOST, or only an error, for this device."""
    error: str = ""
    """NVML's own name of that error."""

    @property
    def memory_free(self) -> int:
        """Bytes."""
        return self.memory_total - self.memory_used - self.memory_reserved

    @property
    def device(self) -> str:
        """As ``Where.devices`` and the probes call it."""
        return f"cuda:{self.index}"

    @property
    def title(self) -> str:
        """As sentences call it: the index of nvidia-smi, and the bus id where it is known."""
        return f"GPU {self.index} ({self.bus_id})" if self.bus_id else f"GPU {self.index}"

    @property
    def busy(self) -> bool:
        """Awake and at work when it was looked at, so that no power saving explains a low state."""
        awake = self.performance_state is None or self.performance_state <= SLOWEST_BUSY_STATE
        return awake and (self.utilisation or 0) >= BUSY_PERCENT


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
    """NVML's own name of the error, say LIB_RM_VERSION_MISMATCH."""
    module_version: str = ""
    """Of the loaded kernel module (/proc/driver/nvidia/version)."""
    library_version: str = ""
    """Of the NVML library that was found, from its file name."""
    device_nodes: tuple[str, ...] = ()
    pci_gpus: tuple[str, ...] = ()
    """Bus ids of NVIDIA display controllers on the PCI bus of the machine, not of a container."""


class Gpus(Section, frozen=True, kw_only=True):
    """All GPUs of a host."""

    driver: str
    """Driver version, say 570.86.15."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that this driver can run."""
    gpus: tuple[Gpu, ...]
    peers: tuple[PeerPath, ...] | None = None

    @property
    def answering(self) -> tuple[Gpu, ...]:
        """Those that NVML could be asked about."""
        return tuple(gpu for gpu in self.gpus if not gpu.lost)

    def alike(self, gpu: Gpu) -> tuple[Gpu, ...]:
        """The others of the same model: what one of them is, all should be."""
        return tuple(
            other for other in self.answering if other.name == gpu.name and other.index != gpu.index
        )

    def without(self, *left_out: Gpu) -> str:
        """The shell lines that keep a run off these devices."""
        indices = {gpu.index for gpu in left_out}
        kept = ",".join(str(gpu.index) for gpu in self.answering if gpu.index not in indices)
        return f"export CUDA_DEVICE_ORDER=PCI_BUS_ID\nexport CUDA_VISIBLE_DEVICES={kept}"


class XidEvent(Part, frozen=True, kw_only=True):
    """One NVRM Xid line of the kernel log."""

    bus_id: str
    """As in ``Gpu.bus_id``."""
    code: int
    text: str
    age: float | None = None
    """Seconds before the look."""


class PcieErrors(Part, frozen=True, kw_only=True):
    """What Advanced Error Reporting logged about one PCIe device, of one severity."""

    bus_id: str
    severity: Literal["corrected", "nonfatal", "fatal"]
    count: int
    span: float | None = None
    """Seconds from the first to the last."""
    age: float | None = None
    """Seconds from the last to the look."""


class KernelLog(Section, frozen=True, kw_only=True):
    """What the kernel log says about GPUs and about processes killed for memory."""

    source: str
    """Where it was read: /dev/kmsg, journalctl, a file."""
    xids: tuple[XidEvent, ...] = ()
    pcie_errors: tuple[PcieErrors, ...] = ()
    oom_kills: tuple[str, ...] = ()
