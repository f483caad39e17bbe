"""The processes that hold a GPU's memory: this user's, others', orphans, and hidden ones."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil

from ddoctor.evidence.gpus import GpuProcess
from ddoctor.proc.usage import cpu_seconds

LOOK_SECONDS = 0.5
"""Seconds between the two readings of CPU times: 50 ticks of the kernel's clock."""

REAPERS = frozenset(
    {"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "runsvdir"}
    | {"pause", "sleep", "tail"}
)
"""Processes that adopt orphans and start no training: init systems, the small inits of containers,
and the commands that keep a container open. Shells are excluded: the first process of a container
may be the true parent."""

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of include/linux/proc_ns.h: the one namespace that no container made."""

Row = tuple[int, int | None]


def holders(
    rows: Sequence[Sequence[Row] | None],
    root: Path = Path("/"),
    reapers: frozenset[str] = REAPERS,
) -> list[tuple[GpuProcess, ...] | None]:
    """The processes of each device's pids and bytes."""
    pids = {pid for device in rows for pid, _ in device or ()}
    seen = {pid: process for pid in pids if (process := _process(pid, root)) is not None}
    before = {pid: cpu_seconds(pid) for pid in seen}
    if seen:
        time.sleep(LOOK_SECONDS)
    idle = {pid: cpu_seconds(pid) == before[pid] for pid in seen}
    return [
        None
        if device is None
        else tuple(_holder(*row, seen.get(row[0]), idle.get(row[0]), reapers) for row in device)
        for device in rows
    ]


def _process(pid: int, root: Path) -> psutil.Process | None:
    """The process with this number, if the driver surely means the same process."""
    if os.readlink("/proc/self/ns/pid") != INITIAL_PID_NAMESPACE and not _has_gpu_open(pid, root):
        return None
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _has_gpu_open(pid: int, root: Path) -> bool:
    """In a container the driver may count in the host's pids; an open device node settles it."""
    try:
        files = list((root / "proc" / str(pid) / "fd").iterdir())
        return any(os.readlink(file).startswith("/dev/nvidia") for file in files)
    except OSError:
        return False


def _holder(
    pid: int,
    memory: int | None,
    process: psutil.Process | None,
    idle: bool | None,
    reapers: frozenset[str],
) -> GpuProcess:
    holder: Literal["own", "foreign", "orphan", "hidden"]
    try:
        if process is None:
            return GpuProcess(pid=pid, memory=memory, holder="hidden")
        with process.oneshot():
            name, user = process.name(), process.username()
            if process.uids().real != os.getuid():
                holder = "foreign"
            elif idle and _orphaned(process, reapers):
                holder = "orphan"
            else:
                holder = "own"
    except psutil.Error:
        return GpuProcess(pid=pid, memory=memory, holder="hidden")
    return GpuProcess(pid=pid, memory=memory, name=name, user=user, holder=holder, idle=idle)


def _orphaned(process: psutil.Process, reapers: frozenset[str]) -> bool:
    """Whether the parent adopts orphans; a process without a parent was started in a container."""
    parent = process.parent()
    return parent is not None and parent.name() in reapers
