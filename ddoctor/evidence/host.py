"""The machine itself: processors, memory, limits, disks, clock, kernel."""

from __future__ import annotations

from ddoctor.evidence.section import Part, Section


class NumaNode(Part, frozen=True, kw_only=True):
    """One NUMA node and the logical CPUs that belong to it."""

    index: int
    cpus: tuple[int, ...]
    memory: int | None = None
    """Bytes."""


class Cpus(Section, frozen=True, kw_only=True):
    """Logical CPUs that exist, that this process may use, and that its cgroup pays for."""

    model: str = ""
    logical: int
    allowed: tuple[int, ...]
    """The affinity mask of this process: indices of logical CPUs."""
    quota: float | None = None
    """CPUs' worth of time per period in the tightest cgroup above this process; None: unlimited."""
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_seconds: float | None = None
    numa: tuple[NumaNode, ...] = ()
    load: tuple[float, float, float] | None = None
    """Load averages over 1, 5 and 15 minutes."""

    @property
    def usable(self) -> float:
        """CPUs that this process can really keep busy: mask and quota together."""
        mask = float(len(self.allowed))
        return mask if self.quota is None else min(mask, self.quota)


class Memory(Section, frozen=True, kw_only=True):
    """Host memory and the cgroup's limit, in bytes."""

    total: int
    available: int
    swap_total: int = 0
    swap_free: int = 0
    limit: int | None = None
    """The tightest cgroup limit above this process; None: unlimited."""
    used_in_limit: int | None = None


class SharedMemory(Section, frozen=True, kw_only=True):
    """The file system at /dev/shm, in bytes."""

    path: str = "/dev/shm"
    filesystem: str = ""
    size: int
    free: int


class Limit(Part, frozen=True, kw_only=True):
    """One resource limit; None means unlimited."""

    soft: int | None
    hard: int | None


class Limits(Section, frozen=True, kw_only=True):
    """Resource limits of this process: files, locked bytes, processes."""

    open_files: Limit
    locked_memory: Limit
    processes: Limit


class Disk(Part, frozen=True, kw_only=True):
    """A file system that a run writes to or reads from; sizes in bytes."""

    roles: tuple[str, ...]
    """What it is used for: working folder, temporary folder, Hugging Face cache."""
    path: str
    device: str = ""
    filesystem: str = ""
    size: int
    free: int
    """Bytes free for this user."""
    files: int | None = None
    files_free: int | None = None
    writable: bool = True


class Disks(Section, frozen=True, kw_only=True):
    """The disks behind the folders that a training run uses."""

    disks: tuple[Disk, ...]


class Clock(Section, frozen=True, kw_only=True):
    """What the kernel says about the synchronisation of its clock (adjtimex)."""

    synchronised: bool | None
    estimated_error: float | None = None
    """Seconds."""
    maximum_error: float | None = None
    """Seconds."""
    service: str = ""
    """The time service that runs, where one was seen: chronyd, ntpd, systemd-timesyncd, …"""


class Kernel(Section, frozen=True, kw_only=True):
    """Kernel, container and the settings that decide about peer-to-peer DMA."""

    release: str
    command_line: str | None = None
    container: str = ""
    """docker, podman, kubernetes, lxc, …; empty: none was recognised."""
    virtual_machine: str = ""
    """The hypervisor as DMI or CPUID name it; empty: none was recognised."""
    iommu_groups: int | None = None
    """Devices sit in IOMMU groups only when an IOMMU is on."""
    iommu_passthrough: bool | None = None
    acs_redirecting: tuple[str, ...] | None = None
    """PCIe bridges whose Access Control Services redirect peer requests; None: not readable."""
