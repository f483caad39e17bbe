"""Finds the training ranks of this host by their environment, and groups them into jobs."""

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
# A DataLoader worker names its process (torch/utils/data/_utils/worker.py).
PYTHON = re.compile(r"python[\d.]*t?|pt_data_worker")
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")
# The helper processes of multiprocessing.
HELPERS = re.compile(r"resource_tracker|forkserver|resource_sharer")
TORCH, DRIVER = "libtorch", "libcuda.so"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """A rank, with its DataLoader workers."""

    process: psutil.Process
    rank: int
    world: int
    job: tuple[str, ...]
    """The key of its job: the values of JOB_NAMES, and the network namespace.

    A script without a launcher has its PID as the key."""
    command: tuple[str, ...]
    local: tuple[int, ...] = ()
    """All ranks that were started on this host, by its environment; empty: not known."""
    supervised: bool = False
    """Whether torchrun, or a launcher that uses it, supervises it."""
    on_gpu: bool = False
    """Whether it has the CUDA driver loaded."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its environment; it is never written anywhere."""
    workers: tuple[psutil.Process, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """The ranks found, and the processes that cannot be inspected."""

    ranks: tuple[RankProcess, ...]
    foreign: tuple[int, ...] = ()
    """Python processes of other users, which cannot be inspected."""

    @property
    def jobs(self) -> Mapping[tuple[str, ...], tuple[RankProcess, ...]]:
        """Return the ranks of each job, in order."""
        jobs: dict[tuple[str, ...], list[RankProcess]] = {}
        for one in sorted(self.ranks, key=lambda one: one.rank):
            jobs.setdefault(one.job, []).append(one)
        return {job: tuple(rows) for job, rows in jobs.items()}


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A Python process with torch loaded."""

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
        """Return the network namespace if the rendezvous is on localhost; else an empty text."""
        if self.environment.get("MASTER_ADDR") in LOOPBACK:
            with suppress(OSError):
                return os.readlink(f"/proc/{self.process.pid}/ns/net")
        return ""

    @property
    def launches(self) -> bool:
        """Whether it is a launcher, which also has torch loaded."""
        return self.rank is None and any(word.endswith(LAUNCHERS) for word in self.command[:4])


def find() -> Found:
    """Return all ranks on this host.

    Of several processes with the same rank, the outermost with torch loaded is the rank; the
    others are its children. Without any rank number, each process that no other one started is
    rank 0 of a separate run.
    """
    seen, foreign = _look()
    chosen = _outermost({pid: one for pid, one in seen.items() if one.rank is not None})
    chosen = chosen or _outermost({pid: one for pid, one in seen.items() if not one.launches})
    return Found(ranks=_rank_processes(chosen, seen), foreign=foreign)


def named(pids: Sequence[int]) -> Found:
    """Return the ranks of these PIDs: each is a rank, or a process that started ranks.

    Raises:
        DoctorError: a process does not exist, has no training, or is another user's.
    """
    seen, foreign = _look()
    chosen: dict[int, _Seen] = {}
    for pid in pids:
        if not psutil.pid_exists(pid):
            raise DoctorError(f"there is no process {pid}, or it has ended")
        if pid in foreign:
            raise DoctorError(f"process {pid} cannot be inspected: {remedy()}")
        inside = {one: row for one, row in seen.items() if one == pid or pid in row.ancestors}
        ranked = {one: row for one, row in inside.items() if row.rank is not None}
        mine = _outermost(ranked) or _outermost(inside)
        if not mine:
            raise DoctorError(
                f"process {pid} is no Python process with torch loaded, and has started none: "
                "pass the PID of a rank or of its launcher"
            )
        chosen |= {one.process.pid: one for one in mine}
    return Found(ranks=_rank_processes(list(chosen.values()), seen), foreign=foreign)


def remedy() -> str:
    """Return how to get access to processes that deny it."""
    if os.geteuid() == 0:
        return FORBIDDEN
    return "it belongs to another user: run ddoctor as that user or as root"


def missing(rank_processes: Sequence[RankProcess]) -> tuple[int, ...]:
    """Return the ranks of this host that have exited."""
    started = {rank for one in rank_processes for rank in one.local}
    return tuple(sorted(started - {one.rank for one in rank_processes}))


def _look() -> tuple[Mapping[int, _Seen], tuple[int, ...]]:
    """Return all Python processes with torch loaded, and those of other users."""
    seen: dict[int, _Seen] = {}
    foreign: list[int] = []
    # Without ddoctor's own process and its parents, such as a notebook.
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
    """Return the processes that no other process of the same rank has started."""
    return [
        one
        for one in seen.values()
        if not any(pid in seen and seen[pid].rank == one.rank for pid in one.ancestors)
    ]


def _rank_processes(chosen: Sequence[_Seen], seen: Mapping[int, _Seen]) -> tuple[RankProcess, ...]:
    # Without a launcher, each process is a separate run, unless one process started several.
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
    """Return the ranks on its host, itself included."""
    if one.rank is None:
        return ()
    with suppress(KeyError, ValueError):
        first = one.rank - int(one.environment["LOCAL_RANK"])
        return tuple(range(first, first + int(one.environment["LOCAL_WORLD_SIZE"])))
    here = one.environment.get("MASTER_ADDR", "") in LOOPBACK
    return tuple(range(one.world)) if here else ()


def _workers(rank: _Seen, seen: Mapping[int, _Seen]) -> Iterator[psutil.Process]:
    """Yield the rank's workers: forked ones look like it, spawned ones have a worker's name."""
    for one in seen.values():
        spawned = any("multiprocessing" in word for word in one.command)
        helper = any(HELPERS.search(word) for word in one.command)
        alike = spawned or one.command == rank.command
        if rank.process.pid in one.ancestors and alike and not helper:
            yield one.process
