"""Who is a rank, by what its own launcher told it."""

from __future__ import annotations

import os

from ddoctor.live import rank_processes
from tests.live.test_bad_input import WITH_TORCH, python

# mpirun starts its daemons with srun, whose words the ranks inherit.
IN_AN_ALLOCATION = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}


def test_a_rank_of_mpirun_within_an_allocation() -> None:
    told = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
    with python(WITH_TORCH, **IN_AN_ALLOCATION, **told) as process:
        (found,) = rank_processes.named([process.pid]).ranks
    assert (found.rank, found.world) == (3, 8)


def test_a_rank_of_srun() -> None:
    with python(WITH_TORCH, **IN_AN_ALLOCATION, SLURM_LOCALID="0") as process:
        (found,) = rank_processes.named([process.pid]).ranks
    assert (found.rank, found.world) == (0, 2)


def test_a_process_that_nobody_launched() -> None:
    assert "RANK" not in os.environ
    with python(WITH_TORCH) as process:
        (found,) = rank_processes.named([process.pid]).ranks
    assert (found.rank, found.world, found.job) == (0, 1, (str(process.pid),))
