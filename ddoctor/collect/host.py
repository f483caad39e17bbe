"""The resources of this process: CPUs, memory, limits, and the accuracy of the clock."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from pathlib import Path

import psutil

from ddoctor.collect import CannotSee
from ddoctor.evidence.host import (
    Clock,
    Cpus,
    Limit,
    Limits,
    Memory,
    NumaNode,
    SharedMemory,
)
from ddoctor.evidence.section import Unseen
from ddoctor.proc import cgroup
from ddoctor.proc.files import search, text

LOOK_SECONDS = 1.0
"""Seconds; ten of the kernel's default quota periods of 100 ms."""

CAP_IPC_LOCK = 14
"""linux/capability.h"""

STA_UNSYNC = 0x0040
TIME_ERROR = 5
"""linux/timex.h"""

TIME_SERVICES = (
    "chronyd",
    "ntpd",
    "ntp-daemon",
    "systemd-timesyncd",
    "ptp4l",
    "phc2sys",
    "timemaster",
)


def cpus(root: Path = Path("/"), look_seconds: float = LOOK_SECONDS) -> Cpus:
    """Logical CPUs, this process's share of them, and whether its quota throttles it now."""
    groups = cgroup.controller("cpu", root)
    before = quota = cgroup.quota(groups)
    if before.cpus is not None:
        time.sleep(look_seconds)
        quota = cgroup.quota(groups)
    recent, recent_throttled = quota.since(before)
    cpuset = cgroup.cpuset(cgroup.controller("cpuset", root))
    return Cpus(
        model=search(r"^model name\s*:(.*)$", root / "proc/cpuinfo"),
        logical=os.cpu_count() or len(os.sched_getaffinity(0)),
        allowed=tuple(sorted(os.sched_getaffinity(0))),
        cpuset=indices(cpuset) if cpuset else None,
        quota=quota.cpus,
        quota_file=quota.file,
        periods=quota.periods,
        throttled_periods=quota.throttled,
        throttled_seconds=quota.seconds,
        recent_periods=recent,
        recent_throttled_periods=recent_throttled,
        numa=_numa(root),
        load=os.getloadavg(),
    )


def memory(root: Path = Path("/")) -> Memory:
    """The host's memory, and the cgroup's limit if it is lower."""
    physical, swap = psutil.virtual_memory(), psutil.swap_memory()
    limit = cgroup.memory_limit(cgroup.controller("memory", root))
    if limit.limit is not None and limit.limit >= physical.total:
        limit = cgroup.MemoryLimit()
    return Memory(
        total=physical.total,
        available=physical.available,
        swap_total=swap.total,
        swap_free=swap.free,
        limit=limit.limit,
        used_in_limit=limit.used,
        kills_in_limit=limit.kills,
    )


def shared_memory(path: Path = Path("/dev/shm")) -> SharedMemory:
    """The file system for shared memory; `CannotSee` where there is none."""
    try:
        state = os.statvfs(path)
    except OSError as error:
        raise CannotSee(f"{path}: {error.strerror}") from error
    mounted = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    return SharedMemory(
        path=str(path),
        filesystem=mounted.get(str(path), ""),
        size=state.f_blocks * state.f_frsize,
        free=state.f_bavail * state.f_frsize,
    )


def limits(root: Path = Path("/")) -> Limits:
    """Resource limits of this process, which its children inherit."""
    return Limits(
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        processes=_limit(resource.RLIMIT_NPROC),
        locks_without_limit=_has_capability(CAP_IPC_LOCK, root),
    )


def clock() -> Clock:
    """The kernel's estimate of its clock error, from adjtimex(2); reading needs no privilege."""
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    service = next((service for service in TIME_SERVICES if service in names), "")
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        why = os.strerror(ctypes.get_errno())
        refused = Unseen(what="synchronisation of the clock", why=f"adjtimex: {why}")
        return Clock(synchronised=None, service=service, unseen=(refused,))
    return Clock(
        synchronised=state != TIME_ERROR and not timex.status & STA_UNSYNC,
        estimated_error=timex.esterror / 1e6,
        maximum_error=timex.maxerror / 1e6,
        service=service,
    )


class _Timex(ctypes.Structure):
    """The first fields of struct timex in linux/timex.h; errors in microseconds."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def indices(listed: str) -> tuple[int, ...]:
    """The CPUs of a list as the kernel writes it: ``0-2,8`` is 0, 1, 2 and 8."""
    ranges = (part.partition("-") for part in listed.strip().split(",") if part)
    return tuple(
        index for first, _, last in ranges for index in range(int(first), int(last or first) + 1)
    )


def _numa(root: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        index = int(folder.name.removeprefix("node"))
        kib = search(r"MemTotal:\s+(\d+)", folder / "meminfo")
        listed = indices(text(folder / "cpulist"))
        memory = int(kib) * 1024 if kib else None
        nodes.append(NumaNode(index=index, cpus=listed, memory=memory))
    return tuple(sorted(nodes, key=lambda node: node.index))


def _limit(which: int) -> Limit:
    soft, hard = (
        None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which)
    )
    return Limit(soft=soft, hard=hard)


def _has_capability(number: int, root: Path) -> bool | None:
    mask = search(r"^CapEff:(.*)$", root / "proc/self/status")
    return bool(int(mask, 16) >> number & 1) if mask else None


COLLECTORS = (cpus, memory, shared_memory, limits, clock)
