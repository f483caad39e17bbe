"""The ranks of commands that no launcher of torch's starts: Python's own, and Lightning's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ddoctor.evidence.launch import Setting
from ddoctor.launch.programs import STARTERS, TASK_STARTERS

TASKS_FOLLOW = frozenset(
    {
        *("cpus-per-task", "gpus-per-task", "srun.tres_per_task", "srun.ntasks_per_gpu"),
        *("srun.ntasks_per_socket", "srun.ntasks_per_core", "srun.sockets_per_node"),
        *("srun.cores_per_socket", "srun.threads_per_core", "srun.extra_node_info"),
    }
)
"""Options by which srun starts more than one task per host unasked (slurm.schedmd.com/srun.html,
``--ntasks``; src/sbatch/opt.c)."""


def of_lightning(told: Sequence[Setting]) -> Iterator[Setting]:
    """A rank for each device, as Lightning starts them on each host."""
    for one in told:
        yield msgspec.structs.replace(one, name=one.name.removeprefix("lightning."))
    yield Setting(name="hosts", value="1", origin="the default of Lightning")


def of_python(settings: Sequence[Setting], around: Sequence[str]) -> Iterator[Setting]:
    """One rank for each process: a scheduler's tasks, else one."""
    told = {one.name: one for one in reversed(settings)}
    if _by_hand(told, around):
        yield msgspec.structs.replace(told["env.WORLD_SIZE"], name="ranks")
        return
    if "sbatch" in around and not {*around} & {*TASK_STARTERS}:
        for name in ("ranks", "hosts"):
            yield Setting(name=name, value="1", origin="a batch script runs once")
        return
    pods = told.get("pods")
    if pods is not None and (pods.number or 0) > 1 and not {*around} & {*STARTERS}:
        # Each pod runs the command once.
        yield from (msgspec.structs.replace(pods, name=name) for name in ("ranks", "hosts"))
        return
    nodes, each = told.get("nodes"), told.get("tasks-per-host")
    if tasks := told.get("tasks"):
        yield msgspec.structs.replace(tasks, name="ranks")
    elif each is not None:
        yield msgspec.structs.replace(each, name="ranks-per-host")
    elif "srun" in around and nodes is not None and not told.keys() & TASKS_FOLLOW:
        yield Setting(name="ranks-per-host", value="1", origin="the default of srun")
    elif not {*around} & {*STARTERS}:
        yield Setting(name="ranks", value="1", origin="one process of Python")
    named = told.get("mpirun.host", told.get("mpirun.hosts"))
    if nodes is not None:
        yield msgspec.structs.replace(nodes, name="hosts")
    elif named is not None:
        count = len({one.partition(":")[0] for one in named.value.split(",")})
        yield msgspec.structs.replace(named, name="hosts", value=str(count))
    elif tasks is not None and each is not None and tasks.number and each.number:
        hosts = -(-tasks.number // each.number)
        yield msgspec.structs.replace(tasks, name="hosts", value=str(hosts))
    elif not {*around} & {*STARTERS}:
        yield Setting(name="hosts", value="1", origin="one process of Python")


def _by_hand(told: Mapping[str, Setting], around: Sequence[str]) -> bool:
    """Whether the command is one of several that get their rank and the number of ranks."""
    rank = told.get("env.RANK")
    if rank is None or "env.WORLD_SIZE" not in told or {*around} & {*TASK_STARTERS}:
        return False
    # A batch script runs once, but a loop in it may start all ranks of a host.
    return "sbatch" not in around or ("$" in rank.value and "SLURM" not in rank.value)
