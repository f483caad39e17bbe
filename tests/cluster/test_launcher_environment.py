"""Which rank a process is, by variables as launchers really set them."""

from __future__ import annotations

import pytest

from ddoctor.cluster.launcher_environment import LaunchedRank, place
from ddoctor.errors import DoctorError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "41773",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
# Slurm 22.05: srun -n 3 on two nodes.
SRUN = {
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
}
# Open MPI 4.1: mpirun -np 2 on one host.
OPEN_MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "PMIX_RANK": "1",
}
# MPICH 4.0: mpirun -np 2 on one host.
MPICH = {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}


def told(found: LaunchedRank) -> tuple[int, int, int, int, str, int, bool]:
    ranks = (found.rank, found.world_size, found.local_rank, found.local_size)
    return (*ranks, found.address, found.port, found.hosts_store)


def test_torchrun_has_a_store() -> None:
    assert told(place(TORCHRUN)) == (3, 4, 1, 2, "node-0", 41773, False)
    assert told(place(TORCHRUN | {"RANK": "0"}))[-1] is False
    assert place(TORCHRUN).run != place(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).run


def test_srun_tells_the_first_node_and_the_tasks_on_each() -> None:
    assert told(place(SRUN)) == (2, 3, 0, 1, "n1", 29500, False)
    first = SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert told(place(first)) == (0, 3, 0, 2, "n1", 29500, True)
    assert place(SRUN | {"MASTER_ADDR": "10.0.0.1"}).address == "10.0.0.1"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[017-019,021]", "gpu017"),
        ("gpu[3,7]-ib,other", "gpu3-ib"),
        ("login,gpu[1-2]", "login"),
        ("rack[1-2]n[04-08]", "rack1n04"),
        ("a.example.org,b.example.org", "a.example.org"),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert place(SRUN | {"SLURM_STEP_NODELIST": nodes}).address == first


@pytest.mark.parametrize(
    ("tasks", "node", "here"), [("8(x4)", "3", 8), ("2(x2),1", "2", 1), ("2(x2),1", "1", 2)]
)
def test_slurms_tasks_on_this_node(tasks: str, node: str, here: int) -> None:
    environment = SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node}
    assert place(environment).local_size == here


@pytest.mark.parametrize("environment", [OPEN_MPI, MPICH])
def test_mpirun_on_one_host_needs_no_address(environment: dict[str, str]) -> None:
    assert told(place(environment)) == (1, 2, 1, 2, "localhost", 29500, False)


def test_mpirun_over_hosts_does_not_tell_the_first() -> None:
    environment = OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(DoctorError, match="MASTER_ADDR is not set"):
        place(environment)
    assert place(environment | {"MASTER_ADDR": "node-0"}).address == "node-0"


@pytest.mark.parametrize("environment", [OPEN_MPI, MPICH])
def test_mpirun_within_an_allocation_of_slurm(environment: dict[str, str]) -> None:
    daemon = SRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    assert place(daemon | environment).rank == 1


def test_srun_that_brings_up_mpi_is_still_srun() -> None:
    assert place(SRUN | {"PMI_RANK": "2", "PMI_SIZE": "3"}).local_size == 1


def test_a_torchrun_that_srun_started_is_torchrun() -> None:
    assert place(SRUN | OPEN_MPI | TORCHRUN).rank == 3


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no launcher started this"),
        (TORCHRUN | {"RANK": "4"}, "RANK=4 is not a rank of a world of WORLD_SIZE=4"),
        (TORCHRUN | {"LOCAL_RANK": "one"}, "LOCAL_RANK='one' must be a number"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT is 0, at which no rank finds the others"),
    ],
)
def test_words_that_make_no_sense(environment: dict[str, str], message: str) -> None:
    with pytest.raises(DoctorError, match=message):
        place(environment)


def test_deepspeed_has_another_name_for_the_ranks_of_a_host() -> None:
    """Its launcher, version 0.19, sets no LOCAL_WORLD_SIZE."""
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}
    found = place({**told, "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"})
    assert (found.local_rank, found.local_size) == (1, 4)
