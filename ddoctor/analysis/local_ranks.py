"""How many ranks a host runs, and the source of that number."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddoctor.analysis.derived import Derived
from ddoctor.analysis.parsing import whole
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.joining import JoiningRank
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.software import Environment
from ddoctor.evidence.training import RankEnding, TrainingRun

# CUDA's cudaErrorInvalidDevice (101), and torch/_utils.py.
NO_GPU = re.compile(r"invalid device ordinal|Invalid device id", re.IGNORECASE)
GLOBAL_RANK = re.compile(r"[\"']RANK[\"']|\bget_rank\(\)")
# Of one host, people call the number among its own ranks by this name as well.
NAMED_RANK = re.compile(r"\b(?:global_)?rank\b")
USUAL_GPUS = 8
"""Few hosts have more."""
OF_TASKS = {
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
}
"""What tells a task its rank, the number of tasks, and its rank on its host.

Sources: slurm.schedmd.com/srun.html, output environment variables; docs.open-mpi.org,
"Environment variables that Open MPI sets".
"""


@dataclass(frozen=True, kw_only=True)
class LocalRanks(Derived):
    """The number of ranks of one host."""

    number: int | None = None
    """None: nothing shows it."""
    told_by: str = ""
    """For a sentence: ``LOCAL_WORLD_SIZE``, ``one per GPU``, ``as the probes ran``."""
    certain: bool = True
    """Whether the number is known, not only usual."""

    @classmethod
    def derive(
        cls, gpus: Gpus | None, environment: Environment | None, runs: ProbeRuns | None
    ) -> LocalRanks:
        """LOCAL_WORLD_SIZE, else one per visible GPU, else the number of the probes' ranks here."""
        local = environment.get("LOCAL_WORLD_SIZE") if environment is not None else None
        if number := whole(local or ""):
            return cls(number=number, told_by="LOCAL_WORLD_SIZE")
        if visible := visible_gpus(gpus, environment):
            return cls(number=len(visible), told_by="one per GPU", certain=False)
        if runs is not None and runs.host and runs.world_size:
            return cls(number=runs.world_size, told_by="as the probes ran")
        return cls()


def bound_one_by_one(environment: Environment | None) -> bool:
    """Whether this process is a rank that mpirun bound to separate cores.

    Open MPI binds each rank to a core or a NUMA node by default, so the mask of one rank does not
    show those of the others.
    """
    return (
        environment is not None
        and environment.get("OMPI_COMM_WORLD_LOCAL_RANK") is not None
        and environment.get("LOCAL_WORLD_SIZE") is None
    )


def visible_gpus(gpus: Gpus | None, environment: Environment | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA makes visible: those of CUDA_VISIBLE_DEVICES, or all."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES") if environment is not None else None
    return _chosen(gpus.gpus if gpus is not None else (), chosen)


def device_of(rank: JoiningRank, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """The GPU that a rank uses: that of its local rank, or the only visible one."""
    visible = _chosen(gpus, rank.visible_devices)
    index = 0 if len(visible) == 1 else rank.local_rank
    return visible[index] if index is not None and index < len(visible) else None


def _chosen(gpus: tuple[Gpu, ...], chosen: str | None) -> tuple[Gpu, ...]:
    """The GPUs of this list of indices and (shortened) UUIDs; CUDA stops at the first unknown."""
    if chosen is None:
        return gpus
    found = []
    for name in map(str.strip, chosen.split(",")):
        fits = [
            one for one in gpus if name == str(one.index) or (name and one.uuid.startswith(name))
        ]
        if not fits:
            break
        found.append(fits[0])
    return tuple(found)


def by_global_rank(run: TrainingRun) -> RankEnding | None:
    """The rank that failed where it takes its number among all hosts for a GPU of its host."""
    for one in run.failures:
        text = one.place.text if one.place is not None else ""
        named = GLOBAL_RANK.search(text) or (one.rank >= USUAL_GPUS and NAMED_RANK.search(text))
        # A remainder of the number may well be that of a GPU.
        if NO_GPU.search(one.said) and named and "%" not in text:
            return one
    return None
