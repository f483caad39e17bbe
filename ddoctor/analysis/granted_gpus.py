"""The GPUs that a scheduler grants on each host."""

from __future__ import annotations

import re

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Launch, Setting

# slurm.schedmd.com/sbatch.html, --gres: a list of ``gpu``, ``gpu:4``, ``gpu:h100:4``, ``nvme:1``.
OF_GRES = re.compile(r"(?:gres/)?gpu(?::[^:]*[A-Za-z][^:]*)?(?::(?P<n>\d+))?")
# --gpus, --gpus-per-node, --gpus-per-task: ``4`` or ``h100:4``.
OF_GPUS = re.compile(r"(?:[\w.-]+:)?(?P<n>\d+)")
NAME = "gpus-per-host"


def gpus_per_host(launch: Launch) -> Setting | None:
    """The number on each host, where it is written; None: the launch does not show it."""
    if (own := launch.get(NAME)) is not None and (count := _count(own)) is not None:
        return _as(own, count)
    if (gres := launch.get("gres")) is not None:
        return _as(gres, found) if (found := _of_gres(gres.value)) else None
    nodes, each = launch.number("nodes"), tasks_per_host(launch)
    if (per_task := launch.get("gpus-per-task")) is not None:
        number = _count(per_task)
        return _as(per_task, number * each) if number is not None and each else None
    total = launch.get("gpus")
    number = _count(total) if total is not None else None
    shared = number is not None and nodes and number % nodes == 0
    return _as(total, number // nodes) if total and number and nodes and shared else None


def tasks_per_host(launch: Launch) -> int | None:
    """The number of tasks that Slurm starts on each host; None: not known.

    Source: slurm.schedmd.com/srun.html: ``--ntasks`` goes before ``--ntasks-per-node``, which is
    then the most of a host.
    """
    own, tasks, nodes = (launch.number(one) for one in ("tasks-per-host", "tasks", "nodes"))
    if tasks is None or not nodes or tasks % nodes:
        return own
    return tasks // nodes if own is None else min(own, tasks // nodes)


def _count(one: Setting) -> int | None:
    match = OF_GPUS.fullmatch(one.value)
    return int(match["n"]) if match else None


def _of_gres(value: str) -> int:
    """The sum of all kinds of GPUs; 0: there is none."""
    parts = (part.partition("(")[0] for part in value.split(","))
    found = (OF_GRES.fullmatch(part) for part in parts)
    return sum(int(one["n"] or 1) for one in found if one)


def _as(one: Setting, count: int) -> Setting:
    return with_fields(one, name=NAME, value=str(count))
