"""The host: processors, memory, limits, disks, clock, kernel."""

from __future__ import annotations

from collections.abc import Iterable

from ddoctor.evidence.section import Count, Part, Section


class NumaNode(Part, frozen=True, kw_only=True):
    """One NUMA node, the logical CPUs that belong to it, and its memory in bytes."""

    index: int
    cpus: tuple[int, ...]
    memory: int | None = None
    """Memory of the node in bytes."""


class Cpus(Section, frozen=True, kw_only=True):
    """Logical CPUs that exist, that this process may use, and that its cgroup grants."""

    commands = ("doctor", "probe", "run", "diagnose")

    model: str = ""
    logical: Count
    """Number of logical CPUs of the host."""
    allowed: tuple[int, ...]
    """Affinity mask of this process: indices of logical CPUs. As printed: those online."""
    cpuset: tuple[int, ...] | None = None
    """CPUs that the cgroup allows; None: no cpuset is visible."""
    quota: float | None = None
    """CPUs that the tightest cgroup above this process grants; None: unlimited."""
    quota_file: str = ""
    """The file that sets the quota: cpu.max, or cpu.cfs_quota_us of cgroup v1."""
    periods: int | None = None
    """Quota periods with a running process, since the cgroup exists; recent: in the last second."""
    throttled_periods: int | None = None
    """Periods in which the quota throttled its cgroup."""
    throttled_seconds: float | None = None
    """Seconds of throttling, since the cgroup was created."""
    recent_periods: int | None = None
    """The same during the collection; None: no quota."""
    recent_throttled_periods: int | None = None
    """Throttled periods during the collection; None: no quota."""
    numa: tuple[NumaNode, ...] = ()
    load: tuple[float, float, float] | None = None
    """Load averages over 1, 5 and 15 minutes, in threads."""

    @property
    def usable(self) -> float:
        """CPUs that this process can keep busy: the smaller of mask and quota."""
        mask = float(len(self.allowed))
        return mask if self.quota is None else min(mask, self.quota)


class Memory(Section, frozen=True, kw_only=True):
    """Host memory and cgroup limit, in bytes."""

    commands = ("doctor", "probe", "run", "attach", "diagnose")

    total: int
    available: int
    swap_total: int = 0
    swap_free: int = 0
    limit: int | None = None
    """Bytes; the tightest cgroup limit above this process; None: unlimited."""
    used_in_limit: int | None = None
    """Bytes in use without the page cache that the kernel can reclaim at once."""
    kills_in_limit: int | None = None
    """Processes that the OOM killer ended for this limit since the cgroup was created."""
    kills_before: int | None = None
    """The same when a recorded run began; None: no run, or the kernel does not count."""

    @property
    def kills(self) -> int:
        """Processes killed for this limit, in the recorded run or since the cgroup was made."""
        return (self.kills_in_limit or 0) - (self.kills_before or 0)


class SharedMemory(Section, frozen=True, kw_only=True):
    """The file system at /dev/shm; sizes in bytes."""

    commands = ("doctor", "probe", "run", "diagnose")

    path: str = "/dev/shm"
    filesystem: str = ""
    size: int
    free: int


class Limit(Part, frozen=True, kw_only=True):
    """One resource limit; None: unlimited."""

    soft: int | None
    hard: int | None


class Limits(Section, frozen=True, kw_only=True):
    """Resource limits of this process (ulimit): open files, bytes of locked memory, processes."""

    commands = ("doctor", "probe", "run", "diagnose")

    open_files: Limit
    locked_memory: Limit
    """Limit in bytes."""
    processes: Limit
    locks_without_limit: bool | None = None
    """Whether CAP_IPC_LOCK is in force, which lifts the limit of locked memory."""


class Disk(Part, frozen=True, kw_only=True):
    """A file system that a run reads or writes; sizes in bytes."""

    roles: tuple[str, ...]
    """Its uses: working folder, temporary folder, Hugging Face cache."""
    path: str
    """The folder of the first use, or its nearest existing parent."""
    mount: str = ""
    device: str = ""
    filesystem: str = ""
    size: int
    free: int
    """Bytes that an unprivileged process may still write (Avail of df)."""
    used: int | None = None
    """Bytes in use; less than size minus free if the file system keeps a reserve."""
    files: int | None = None
    """Number of inodes; None: the file system has no fixed number."""
    files_free: int | None = None
    """Number of free inodes; None: the file system has no fixed number."""
    writable: bool = True
    """Whether it is mounted for writing."""

    @property
    def free_share(self) -> float:
        """Share of the usable space that is free, as df computes it: the reserve is excluded."""
        usable = self.size if self.used is None else self.used + self.free
        return self.free / usable if usable else 1.0


class Disks(Section, frozen=True, kw_only=True):
    """The file systems of the folders that a training run uses."""

    commands = ("doctor", "probe", "run", "attach", "diagnose")

    disks: tuple[Disk, ...]


class Clock(Section, frozen=True, kw_only=True):
    """The kernel's clock synchronisation state (adjtimex); errors in seconds."""

    synchronised: bool | None
    estimated_error: float | None = None
    """Seconds."""
    maximum_error: float | None = None
    """Seconds."""
    service: str = ""
    """The running time service, if one is visible: chronyd, ntpd, systemd-timesyncd, …"""


class Kernel(Section, frozen=True, kw_only=True):
    """Kernel, container and the settings that control peer-to-peer DMA."""

    commands = ("doctor", "probe", "run")

    release: str
    command_line: str | None = None
    """Only the options for IOMMU, PCI, CPUs and memory; others may hold secrets."""
    container: str = ""
    """docker, podman, kubernetes, lxc, …; empty: none detected."""
    virtual_machine: str = ""
    """The virtual hardware by DMI or clock source; empty: none detected."""
    iommu_groups: int | None = None
    """Number of IOMMU groups; more than 0 only if an IOMMU is on."""
    iommu_passthrough: bool | None = None
    """Whether the DMA of the GPUs (without GPUs: of any device) is untranslated."""
    acs_redirecting: tuple[str, ...] | None = None
    """PCI addresses of switch ports above a GPU that redirect peer requests; None: unreadable."""

    @property
    def engine(self) -> str:
        """The command whose options set the container's limits; empty: a shell or job sets them."""
        return self.container if self.container in ("docker", "podman") else ""


def cpu_list(cpus: Iterable[int]) -> str:
    """CPU indices as taskset and the kernel write them: 0, 1, 2 and 8 become ``0-2,8``."""
    spans: list[list[int]] = []
    for index in sorted(cpus):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
