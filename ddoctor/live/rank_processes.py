"""The training ranks of this host: found by their own environment, grouped into jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ddoctor.cluster.launcher_environment import dialect
from ddoctor.errors import DoctorError
from ddoctor.live.spy import FORBIDDEN

# The same on all ranks of a job, on every host.
JOB_NAMES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
# A loader's worker gives itself a name (torch/utils/data/_utils/worker.py).
PYTHON = re.compile(r"python[\d.]*t?|pt_data_worker")
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")
# What multiprocessing starts beside those who work.
HELPERS = re.compile(r"resource_tracker|forkserver|resource_sharer")
TORCH, DRIVER = "libtorch", "libcuda.so"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """A rank, with the processes that load its data."""

    process: psutil.Process
    rank: int
    world: int
    job: tuple[str, ...]
    """The same for all ranks of a job: the values of JOB_NAMES, and the network in which they hold;
    of a script without a launcher, its PID alone."""
    command: tuple[str, ...]
    local: tuple[int, ...] = ()
    """All ranks that were started on this host, as its environment tells; empty: it does not."""
    supervised: bool = False
    """Whether torchrun, or who uses it, watches over it."""
    on_gpu: bool = False
    """Whether it has CUDA's driver in it."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What it was started with; of this nothing is written anywhere."""
    workers: tuple[psutil.Process, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """Who is there, and who cannot be looked at."""

    ranks: tuple[RankProcess, ...]
    foreign: tuple[int, ...] = ()
    """Python processes of other users, in which nothing can be seen."""

    @property
    def jobs(self) -> Mapping[tuple[str, ...], tuple[RankProcess, ...]]:
        """The ranks of each job, in order."""
        jobs: dict[tuple[str, ...], list[RankProcess]] = {}
        for one in sorted(self.ranks, key=lambda one: one.rank):
            jobs.setdefault(one.job, []).append(one)
        return {job: tuple(rows) for job, rows in jobs.items()}


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A Python process with torch in it."""

    process: psutil.Process
    ancestors: tuple[int, ...]
    environment: Mapping[str, str]
    command: tuple[str, ...]
    rank: int | None
    world: int
    on_gpu: bool

    @property
    def job(self) -> tuple[str, ...]:
        names = (self.environment.get(name, "") for name in JOB_NAMES)
        return (*names, self._network())

    def _network(self) -> str:
        """Where the ranks meet on this host, which one: each container has a localhost."""
        if self.environment.get("MASTER_ADDR") in LOOPBACK:
            with suppress(OSError):
                return os.readlink(f"/proc/{self.process.pid}/ns/net")
        return ""

    @property
    def launches(self) -> bool:
        """Whether it is a launcher, which has torch in it, too."""
        return self.rank is None and any(word.endswith(LAUNCHERS) for word in self.command[:4])


def find() -> Found:
    """All ranks on this host.

    Of several processes with the same rank, the outermost with torch in it is the rank, and the
    others are its children. Where no process has a rank, one that no other started counts as rank 0
    of a run of its own.
    """
    seen, foreign = _look()
    chosen = _outermost({pid: one for pid, one in seen.items() if one.rank is not None})
    chosen = chosen or _outermost({pid: one for pid, one in seen.items() if not one.launches})
    return Found(ranks=_rank_processes(chosen, seen), foreign=foreign)


def named(pids: Sequence[int]) -> Found:
    """Those who were asked for: a rank, or all that a process has started.

    Raises:
        DoctorError: there is no such process, no training in it, or it is another user's.
    """
    seen, foreign = _look()
    chosen: dict[int, _Seen] = {}
    for pid in pids:
        if not psutil.pid_exists(pid):
            raise DoctorError(f"there is no process {pid} (any more)")
        if pid in foreign:
            raise DoctorError(f"process {pid} cannot be looked into: {remedy()}")
        inside = {one: row for one, row in seen.items() if one == pid or pid in row.ancestors}
        ranked = {one: row for one, row in inside.items() if row.rank is not None}
        mine = _outermost(ranked) or _outermost(inside)
        if not mine:
            raise DoctorError(
                f"process {pid} is no Python process with torch in it, nor has it started one: "
                "give the PID of a rank or of its launcher"
            )
        chosen |= {one.process.pid: one for one in mine}
    return Found(ranks=_rank_processes(list(chosen.values()), seen), foreign=foreign)


def remedy() -> str:
    """What lets one look into the processes that refuse it."""
    if os.geteuid() == 0:
        return FORBIDDEN
    return "it is another user's: run ddoctor as that user, or root"


def missing(rank_processes: Sequence[RankProcess]) -> tuple[int, ...]:
    """The ranks of this host that are not there any more."""
    started = {rank for one in rank_processes for rank in one.local}
    return tuple(sorted(started - {one.rank for one in rank_processes}))


def _look() -> tuple[Mapping[int, _Seen], tuple[int, ...]]:
    """All Python processes with torch in them, and those of other users."""
    seen: dict[int, _Seen] = {}
    foreign: list[int] = []
    # Not the process that asks, nor its parents: a notebook, say.
    own = {os.getpid(), *(one.pid for one in psutil.Process().parents())}
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            if process.pid in own or not PYTHON.fullmatch(process.name()):
                continue
            try:
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                if TORCH not in maps:
                    continue
                environment = process.environ()
            except (psutil.AccessDenied, PermissionError):
                foreign.append(process.pid)
                continue
            rank, world = _rank(environment)
            seen[process.pid] = _Seen(
                process=process,
                ancestors=tuple(parent.pid for parent in process.parents()),
                environment=environment,
                command=tuple(process.cmdline()),
                rank=rank,
                world=world,
                on_gpu=DRIVER in maps,
            )
    return seen, tuple(foreign)


def _rank(environment: Mapping[str, str]) -> tuple[int | None, int]:
    names = dialect(environment)
    if names is not None:
        with suppress(KeyError, ValueError):
            return int(environment[names[0]]), int(environment[names[1]])
    return None, 1


def _outermost(seen: Mapping[int, _Seen]) -> list[_Seen]:
    """Those that none of the others, of the same rank, has started."""
    return [
        one
        for one in seen.values()
        if not any(pid in seen and seen[pid].rank == one.rank for pid in one.ancestors)
    ]


def _rank_processes(chosen: Sequence[_Seen], seen: Mapping[int, _Seen]) -> tuple[RankProcess, ...]:
    # Without a launcher each is a run of its own, but for the children of one that started several.
    return tuple(
        RankProcess(
            process=one.process,
            rank=one.rank if one.rank is not None else 0,
            world=one.world,
            job=one.job if one.rank is not None else (str(one.process.pid),),
            command=one.command,
            local=_local(one),
            supervised="TORCHELASTIC_RUN_ID" in one.environment,
            on_gpu=one.on_gpu,
            environment=one.environment,
            workers=tuple(_workers(one, seen)),
        )
        for one in chosen
    )


def _local(one: _Seen) -> tuple[int, ...]:
    """The ranks beside it, itself included."""
    if one.rank is None:
        return ()
    with suppress(KeyError, ValueError):
        first = one.rank - int(one.environment["LOCAL_RANK"])
        return tuple(range(first, first + int(one.environment["LOCAL_WORLD_SIZE"])))
    here = one.environment.get("MASTER_ADDR", "") in LOOPBACK
    return tuple(range(one.world)) if here else ()


def _workers(rank: _Seen, seen: Mapping[int, _Seen]) -> Iterator[psutil.Process]:
    """What it forked is like itself; what it spawned says so. Not what it merely runs."""
    for one in seen.values():
        spawned = any("multiprocessing" in word for word in one.command)
        helper = any(HELPERS.search(word) for word in one.command)
        alike = spawned or one.command == rank.command
        if rank.process.pid in one.ancestors and alike and not helper:
            yield one.process
