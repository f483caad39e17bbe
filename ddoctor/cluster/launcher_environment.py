"""The rank of this process, from the environment variables of its launcher."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddoctor.errors import DoctorError

# torchrun, accelerate and most scripts; Open MPI's mpirun; MPICH and Intel MPI; Slurm's srun, last,
# because mpirun within an allocation starts its daemons with srun: the ranks inherit its variables.
DIALECTS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)

RESTARTS = "TORCHELASTIC_RESTART_COUNT"

# Time for rank 0 to start and to print its error.
SPEAKING_SECONDS = 20.0
START = "start it as `torchrun --nproc-per-node 2 -m ddoctor.probe`"


@dataclass(frozen=True, kw_only=True)
class LaunchedRank:
    """The rank of this process, and the address of the rendezvous store."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    address: str = "localhost"
    port: int = 0
    agent_store: bool = False
    """Whether torchrun has opened the store, which it does before it starts a rank."""
    run: str = ""
    """Name that separates this run from others that use the same store."""

    @property
    def hosts_store(self) -> bool:
        """Whether this rank opens the store."""
        return self.rank == 0 and not self.agent_store


def leave_it_to_rank_0() -> None:
    """Wait, so that rank 0 can print its error before this rank ends.

    A launcher ends all ranks as soon as one ends; the end of rank 0 ends this rank, too.
    """
    with suppress(KeyboardInterrupt):
        time.sleep(SPEAKING_SECONDS)


def place(environment: Mapping[str, str] = os.environ) -> LaunchedRank:
    """The rank of this process.

    Raises:
        DoctorError: no launcher started it, or its variables contradict each other.
    """
    names = dialect(environment)
    if names is None:
        raise DoctorError(f"no launcher started this process (RANK is not set): {START}")
    rank, size = _number(environment, names[0]), _number(environment, names[1])
    if not 0 <= rank < size:
        raise DoctorError(f"{names[0]}={rank} is not a rank of a world of {names[1]}={size}")
    # Only DeepSpeed's launcher calls it LOCAL_SIZE.
    others = _number(environment, "LOCAL_SIZE", 1)
    local_size = _number(environment, names[3], others) if names[3] else _tasks_here(environment)
    address = environment.get("MASTER_ADDR") or _first_host(environment, alone=local_size == size)
    if not address:
        raise DoctorError("MASTER_ADDR is not set: export the name of rank 0's host to every rank")
    port = _number(environment, "MASTER_PORT", 29500)
    if size > 1 and not port:
        raise DoctorError(
            "MASTER_PORT is 0, at which no rank finds the others: give a free port, as in "
            "`torchrun --master-port 29500`"
        )
    run = (
        environment.get("TORCHELASTIC_RUN_ID", ""),
        environment.get(RESTARTS, ""),
    )
    return LaunchedRank(
        rank=rank,
        world_size=size,
        local_rank=_number(environment, names[2], 0 if size == 1 else None),
        local_size=local_size,
        address=address,
        port=port,
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run="/".join(run),
    )


def restarts(environment: Mapping[str, str] = os.environ) -> int:
    """How often torchrun has restarted the ranks before this start."""
    return _number(environment, RESTARTS, 0)


def dialect(environment: Mapping[str, str]) -> tuple[str, str, str, str] | None:
    """The variables from which to read the rank; None: no launcher has set them."""
    return next((names for names in DIALECTS if _sets(names, environment)), None)


def _sets(names: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    # srun also sets PMI_RANK when it starts MPI, but not the local rank.
    wanted = names[::2] if names[0] == "PMI_RANK" else names[:1]
    return all(environment.get(name) for name in wanted if name)


def _tasks_here(environment: Mapping[str, str]) -> int:
    """Slurm's tasks of this step on this host, from a list for all hosts such as ``2(x3),1``."""
    names = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")
    text = next((environment[name] for name in names if environment.get(name)), "1")
    each = [
        int(number)
        for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        for _ in range(int(times or 1))
    ]
    node = _number(environment, "SLURM_NODEID", 0)
    return each[node] if node < len(each) else each[-1] if each else 1


def _first_host(environment: Mapping[str, str], *, alone: bool) -> str:
    """The host of rank 0, if the launcher names it; Slurm's first task is on the first node."""
    if alone:
        return "localhost"
    nodes = environment.get("SLURM_STEP_NODELIST", "") if "SLURM_STEP_ID" in environment else ""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    # gpu[017-019,021]-a: take the beginning of each range
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first else ""


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    text = environment.get(name, "")
    if text.isdecimal():
        return int(text)
    if not text and otherwise is not None:
        return otherwise
    raise DoctorError(f"{name}={text!r} must be a number: {START}")


def explain_failure(message: str) -> None:
    """Write a message for torchrun, which prints it for a rank whose exit code is not 0."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with suppress(OSError):
            Path(path).write_text(
                json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8"
            )
