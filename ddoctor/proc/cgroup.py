"""Control groups (cgroup v1 and v2) of this process, and the limits that they set.

Inside a container, only the container's own group and those below it are visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

UNLIMITED_BYTES = 2**62
"""cgroup v1 writes the largest page-aligned 63-bit number for "no limit"."""


class Controller(NamedTuple):
    """The folders in which one cgroup controller keeps its files for this process."""

    version: int
    folders: tuple[Path, ...]
    """The process's own group first, then its mounted ancestors."""


class Quota(NamedTuple):
    """CPU time allowed per period, as a number of CPUs, and the file that sets it."""

    cpus: float
    file: Path


class Throttling(NamedTuple):
    """Counters of cpu.stat."""

    periods: int
    throttled: int
    seconds: float


class MemoryLimit(NamedTuple):
    """A memory limit and its use in bytes, and how often the OOM killer enforced it."""

    limit: int
    used: int | None
    kills: int | None


def controller(name: str, root: Path = Path("/")) -> Controller | None:
    """The groups of this process in one controller; None: it is not mounted."""
    found: Controller | None = None
    for mount in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = mount.partition(" - ")
        top, mount_point = before.split()[3:5]
        kind, *_, options = after.split()
        if kind == "cgroup" and name in options.split(","):
            version, path = 1, _own_paths(root).get(name)
        elif kind == "cgroup2" and found is None:
            version, path = 2, _own_paths(root).get("")
        else:
            continue
        if path is not None:
            folders = _folders(root / mount_point.lstrip("/"), top, path)
            found = Controller(version, folders)
            if version == 1:
                break
    return found


def quota(cpu: Controller) -> Quota | None:
    """The tightest CPU quota; None: no group sets one."""
    quotas = (found for folder in cpu.folders if (found := _quota(folder, cpu.version)))
    return min(quotas, default=None, key=lambda one: one.cpus)


def throttling(folder: Path) -> Throttling | None:
    """How often and how long the CPU quota of this group throttled its processes."""
    table = _table(folder / "cpu.stat")
    if "nr_periods" not in table:
        return None
    in_v2, in_v1 = table.get("throttled_usec"), table.get("throttled_time", 0)
    seconds = in_v1 / 1e9 if in_v2 is None else in_v2 / 1e6
    return Throttling(table["nr_periods"], table.get("nr_throttled", 0), seconds)


def memory_limit(memory: Controller) -> MemoryLimit | None:
    """The tightest memory limit; None: no group sets one."""
    name = "memory.max" if memory.version == 2 else "memory.limit_in_bytes"
    limits = ((_number(folder / name), folder) for folder in memory.folders)
    below = [(limit, folder) for limit, folder in limits if limit and limit < UNLIMITED_BYTES]
    if not below:
        return None
    limit, folder = min(below, key=lambda pair: pair[0])
    v2 = memory.version == 2
    used = _number(folder / ("memory.current" if v2 else "memory.usage_in_bytes"))
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


def cpuset(groups: Controller) -> str | None:
    """The CPUs that this process's group may use, in the kernel's format, such as ``0-3,8``."""
    name = "cpuset.cpus.effective" if groups.version == 2 else "cpuset.effective_cpus"
    return next((found for folder in groups.folders if (found := _text(folder / name))), None)


def _own_paths(root: Path) -> Mapping[str, str]:
    """The group of this process by controller; the controller of v2 has no name."""
    paths = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
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


def _quota(folder: Path, version: int) -> Quota | None:
    if version == 2:
        file = folder / "cpu.max"
        allowed, _, period = _text(file).partition(" ")
    else:
        file = folder / "cpu.cfs_quota_us"
        allowed, period = _text(file), _text(folder / "cpu.cfs_period_us")
    if not allowed.isdigit() or not period.isdigit():  # "max", "-1", or no such file
        return None
    return Quota(int(allowed) / int(period), file)


def _table(file: Path) -> Mapping[str, int]:
    return dict(_pairs(_text(file)))


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            yield name, int(value)


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    """The text of a file; empty: it does not exist in the top group or on older kernels."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
