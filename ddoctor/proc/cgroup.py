"""Control groups (cgroup v1 and v2) of this process, and the limits that they set.

Inside a container, only the container's own group and those below it are visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ddoctor.proc.files import number, text

UNLIMITED_BYTES = 2**62
"""cgroup v1 writes the largest page-aligned 63-bit number for "no limit"."""


class Controller(NamedTuple):
    """The folders in which one cgroup controller keeps its files for this process."""

    version: int
    folders: tuple[Path, ...]
    """The process's own group first, then its mounted ancestors."""


class Quota(NamedTuple):
    """CPU time allowed per period, as a number of CPUs (None: unlimited), and its counters."""

    cpus: float | None = None
    file: str = ""
    """The file that sets it."""
    periods: int | None = None
    throttled: int | None = None
    """Periods in which it throttled the group."""
    seconds: float | None = None
    """Seconds of throttling."""

    def since(self, before: Quota) -> tuple[int | None, int | None]:
        """Periods, and throttled ones, since an earlier reading; None: not counted."""
        pairs = ((before.periods, self.periods), (before.throttled, self.throttled))
        periods, throttled = (None if a is None or b is None else b - a for a, b in pairs)
        return periods, throttled


class MemoryLimit(NamedTuple):
    """A memory limit (None: unlimited) and its use in bytes, and how often processes died of it."""

    limit: int | None = None
    used: int | None = None
    kills: int | None = None


def controller(name: str, root: Path = Path("/")) -> Controller:
    """The groups of this process in one controller; no folders: it is not mounted."""
    found = Controller(2, ())
    for mount in text(root / "proc/self/mountinfo").splitlines():
        before, _, after = mount.partition(" - ")
        top, mount_point = before.split()[3:5]
        kind, *_, options = after.split()
        if kind == "cgroup" and name in options.split(","):
            version, path = 1, _own_paths(root).get(name)
        elif kind == "cgroup2" and not found.folders:
            version, path = 2, _own_paths(root).get("")
        else:
            continue
        if path is not None:
            folders = _folders(root / mount_point.lstrip("/"), top, path)
            found = Controller(version, folders)
            if version == 1:
                break
    return found


def quota(cpu: Controller) -> Quota:
    """The tightest CPU quota, and how often it throttled the processes of its group."""
    limits = ((_cpus(folder, cpu.version), folder) for folder in cpu.folders)
    set_ = [(cpus, folder) for cpus, folder in limits if cpus is not None]
    if not set_:
        return Quota()
    cpus, folder = min(set_, key=lambda pair: pair[0])
    file = folder / ("cpu.max" if cpu.version == 2 else "cpu.cfs_quota_us")
    table = _table(folder / "cpu.stat")
    if "nr_periods" not in table:
        return Quota(cpus, str(file))
    in_v2, in_v1 = table.get("throttled_usec"), table.get("throttled_time", 0)
    seconds = in_v1 / 1e9 if in_v2 is None else in_v2 / 1e6
    return Quota(cpus, str(file), table["nr_periods"], table.get("nr_throttled", 0), seconds)


def memory_limit(memory: Controller) -> MemoryLimit:
    """The tightest memory limit of all groups, and its use."""
    name = "memory.max" if memory.version == 2 else "memory.limit_in_bytes"
    limits = ((number(folder / name), folder) for folder in memory.folders)
    below = [(limit, folder) for limit, folder in limits if limit and limit < UNLIMITED_BYTES]
    if not below:
        return MemoryLimit()
    limit, folder = min(below, key=lambda pair: pair[0])
    v2 = memory.version == 2
    used = number(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
    cache = _table(folder / "memory.stat").get("inactive_file" if v2 else "total_inactive_file", 0)
    kills = _kills(memory, folder)
    return MemoryLimit(limit, None if used is None else max(0, used - cache), kills)


def _kills(memory: Controller, limited: Path) -> int | None:
    """Processes that the OOM killer killed in the limited group; None: the kernel has no count."""
    if memory.version == 2:
        return _table(limited / "memory.events").get("oom_kill")
    # v1 counts a process in its own group only, which may lie below the limited group.
    below = memory.folders[: memory.folders.index(limited) + 1]
    counts = [_table(folder / "memory.oom_control").get("oom_kill") for folder in below]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def cpuset(groups: Controller) -> str:
    """The CPUs that its group may use, in the kernel's format, such as ``0-3,8``; empty: all."""
    name = "cpuset.cpus.effective" if groups.version == 2 else "cpuset.effective_cpus"
    return next((found for folder in groups.folders if (found := text(folder / name))), "")


def _own_paths(root: Path) -> Mapping[str, str]:
    """The group of this process by controller; the controller of v2 has no name."""
    paths = {}
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = path
    return paths


def _folders(mount: Path, top: str, path: str) -> tuple[Path, ...]:
    """``top`` is the group that is mounted at ``mount``; a path outside of it counts as ``top``."""
    prefix = top.rstrip("/")
    inside = f"{path}/".startswith(f"{prefix}/") and "/.." not in path
    within = path[len(prefix) :] if inside else ""
    own = mount / within.strip("/")
    folders = [own, *own.parents]
    return tuple(folder for folder in folders[: folders.index(mount) + 1] if folder.is_dir())


def _cpus(folder: Path, version: int) -> float | None:
    """The CPUs of a group's quota; None: unlimited ("max", "-1"), or no such file."""
    if version == 2:
        allowed, _, period = text(folder / "cpu.max").partition(" ")
    else:
        allowed, period = text(folder / "cpu.cfs_quota_us"), text(folder / "cpu.cfs_period_us")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() else None


def _table(file: Path) -> Mapping[str, int]:
    rows = (line.partition(" ") for line in text(file).splitlines())
    return {name: int(value) for name, _, value in rows if value.isdigit()}
