"""The machine itself: processors, memory, limits, disks, clock, kernel."""

from __future__ import annotations

from collections.abc import Iterable

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
    cpuset: tuple[int, ...] | None = None
    """The CPUs that the cgroup allows at all; None: no cpuset was seen."""
    quota: float | None = None
    """CPUs' worth of time per period in the tightest cgroup above this process; None: unlimited."""
    quota_file: str = ""
    """The file that sets the quota: cpu.max, or cpu.cfs_quota_us of cgroup v1."""
    periods: int | None = None
    """Periods of the quota in which anything ran, since its cgroup was made."""
    throttled_periods: int | None = None
    throttled_seconds: float | None = None
    recent_periods: int | None = None
    """The same while the collector looked on; None: there is no quota."""
    recent_throttled_periods: int | None = None
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
    """Without the page cache that the kernel could give back at once."""
    kills_in_limit: int | None = None
    """Processes that the kernel has killed for this limit since its cgroup was made."""


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
    """Bytes."""
    processes: Limit
    locks_without_limit: bool | None = None
    """CAP_IPC_LOCK is in force: the limit of locked memory does not count."""


class Disk(Part, frozen=True, kw_only=True):
    """A file system that a run writes to or reads from; sizes in bytes."""

    roles: tuple[str, ...]
    """What it is used for: working folder, temporary folder, Hugging Face cache."""
    path: str
    """The folder of the first role, or its nearest parent that exists."""
    mount: str = ""
    device: str = ""
    filesystem: str = ""
    size: int
    free: int
    """Bytes that a process without privileges may still write (the Avail of df)."""
    used: int | None = None
    """Less than size minus free where the file system keeps a reserve."""
    files: int | None = None
    """Inodes; None: the file system has no fixed number of them."""
    files_free: int | None = None
    writable: bool = True
    """Not mounted read-only."""

    @property
    def free_share(self) -> float:
        """Of what is usable, like df: the reserve counts neither as used nor as free."""
        usable = self.size if self.used is None else self.used + self.free
        return self.free / usable if usable else 1.0


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
    """Only the words that steer IOMMU, PCI, CPUs and memory: others may hold secrets."""
    container: str = ""
    """docker, podman, kubernetes, lxc, …; empty: none was recognised."""
    virtual_machine: str = ""
    """The virtual hardware as DMI names it, or its clock does; empty: none was recognised."""
    iommu_groups: int | None = None
    """Devices sit in IOMMU groups only when an IOMMU is on."""
    iommu_passthrough: bool | None = None
    """DMA of the GPUs (where there are none: of anything) is not translated."""
    acs_redirecting: tuple[str, ...] | None = None
    """Switch ports above a GPU whose Access Control Services send peer requests up to the root,
    as PCI addresses; None: not readable."""

    @property
    def engine(self) -> str:
        """The command whose options set this container's limits; the other kinds of container
        take them from the shell or job that starts them."""
        return self.container if self.container in ("docker", "podman") else ""


def cpu_list(cpus: Iterable[int]) -> str:
    """Indices as taskset and the kernel write them: 0, 1, 2 and 8 are ``0-2,8``."""
    spans: list[list[int]] = []
    for index in sorted(cpus):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
