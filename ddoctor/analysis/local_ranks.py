"""How many ranks a host runs, and the source of that number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.joining import JoiningRank
from ddoctor.evidence.probes import ProbeRuns


@dataclass(frozen=True)
class LocalRanks:
    """The ranks of one host."""

    number: int
    told_by: str
    """For a sentence: ``LOCAL_WORLD_SIZE``, ``one per GPU``, ``as the probes ran``."""
    certain: bool
    """Whether the number is known, not only usual."""


def local_ranks(
    gpus: Gpus | None, environment: Environment | None, runs: ProbeRuns | None
) -> LocalRanks | None:
    """LOCAL_WORLD_SIZE, else one per visible GPU, else the number of the probes' ranks here."""
    local = environment.get("LOCAL_WORLD_SIZE") if environment is not None else None
    if local is not None and local.isdigit() and int(local) > 0:
        return LocalRanks(int(local), "LOCAL_WORLD_SIZE", certain=True)
    visible = visible_gpus(gpus, environment)
    if visible:
        return LocalRanks(len(visible), "one per GPU", certain=False)
    if runs is not None and runs.host and runs.world_size:
        return LocalRanks(runs.world_size, "as the probes ran", certain=True)
    return None


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
    if gpus is None:
        return ()
    chosen = environment.get("CUDA_VISIBLE_DEVICES") if environment is not None else None
    if chosen is None:
        return gpus.gpus
    return tuple(_chosen(gpus.gpus, chosen))


def device_of(rank: JoiningRank, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """The GPU that a rank uses: that of its local rank, or the only visible one."""
    chosen = rank.visible_devices
    visible = gpus if chosen is None else tuple(_chosen(gpus, chosen))
    index = 0 if len(visible) == 1 else rank.local_rank
    return visible[index] if index is not None and index < len(visible) else None


def _chosen(gpus: tuple[Gpu, ...], chosen: str) -> Iterator[Gpu]:
    """The GPUs of this list of indices and (shortened) UUIDs; CUDA stops at the first unknown."""
    for name in chosen.split(","):
        word = name.strip()
        found = next(
            (gpu for gpu in gpus if word == str(gpu.index) or (word and gpu.uuid.startswith(word))),
            None,
        )
        if found is None:
            return
        yield found
