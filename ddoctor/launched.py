"""Which rank this process is, by the words of whatever started it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ddoctor.errors import DoctorError

# torchrun, accelerate and most scripts; Slurm's srun; Open MPI's mpirun; MPICH and Intel MPI.
DIALECTS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)

START = "start it as `torchrun --nproc-per-node 2 -m ddoctor.probe`"


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank among all, and where they meet."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    hosts_store: bool
    """torchrun has a store already; elsewhere rank 0 makes one."""
    run: str
    """What tells this run from others that use the same store."""


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """The place of this process.

    Raises:
        DoctorError: no launcher started it, or the launcher's words make no sense.
    """
    dialect = next((names for names in DIALECTS if environment.get(names[0])), None)
    if dialect is None:
        raise DoctorError(f"no launcher started this (RANK is not set): {START}")
    address, port = environment.get("MASTER_ADDR", ""), _number(environment, "MASTER_PORT", 29500)
    if not address:
        raise DoctorError("MASTER_ADDR is not set: export the name of rank 0's host to every rank")
    rank, size = _number(environment, dialect[0]), _number(environment, dialect[1])
    if not 0 <= rank < size:
        raise DoctorError(f"{dialect[0]}={rank} is no rank of a world of {dialect[1]}={size}")
    own_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    run = (
        environment.get("TORCHELASTIC_RUN_ID", ""),
        environment.get("TORCHELASTIC_RESTART_COUNT", ""),
    )
    return Place(
        rank=rank,
        world_size=size,
        local_rank=_number(environment, dialect[2], 0 if size == 1 else None),
        local_size=_number(environment, dialect[3], 1),
        address=address,
        port=port,
        hosts_store=own_store and rank == 0,
        run="/".join(run),
    )


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    text = environment.get(name, "")
    if text.isdecimal():
        return int(text)
    if not text and otherwise is not None:
        return otherwise
    raise DoctorError(f"{name}={text!r} should be a number: {START}")
