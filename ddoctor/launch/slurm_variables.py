"""The variables that a batch script finds, by what the job asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddoctor.analysis.granted_gpus import gpus_per_host
from ddoctor.evidence.launch import Launch, Setting

# slurm.schedmd.com/sbatch.html, output environment variables.
BY_OPTION = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_NTASKS": "tasks",
    "SLURM_NPROCS": "tasks",
    "SLURM_NTASKS_PER_NODE": "tasks-per-host",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_GPUS_PER_NODE": "gpus-per-host",
    "SLURM_GPUS": "gpus",
}
OF_ALL_TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")


def of_job(settings: Sequence[Setting]) -> Mapping[str, str]:
    """The variables whose numbers are known, by the settings of a job; the first of a name wins."""
    job = Launch(command=(), launcher="sbatch", settings=tuple(settings))
    asked = {name: job.number(option) for name, option in BY_OPTION.items()}
    nodes, each = asked["SLURM_NNODES"], asked["SLURM_NTASKS_PER_NODE"]
    if nodes is not None and each is not None:
        # src/common/env.c: of a job that asks for tasks per node alone.
        asked |= {name: nodes * each for name in OF_ALL_TASKS if asked[name] is None}
    gpus = gpus_per_host(job)
    asked["SLURM_GPUS_ON_NODE"] = gpus.number if gpus is not None else None
    return {name: str(number) for name, number in asked.items() if number is not None}
