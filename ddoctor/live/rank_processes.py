"""Finds the training ranks of this host by their environment, and groups them into jobs."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

import psutil

from ddoctor.cluster.launcher_environment import dialect
from ddoctor.errors import DoctorError
from ddoctor.evidence import redaction
from ddoctor.live import self_started
from ddoctor.live.sockets import network
from ddoctor.live.spy import FORBIDDEN
from ddoctor.recorder import recorded

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
    """A Python process with torch loaded: a rank, with its DataLoader workers."""

    process: psutil.Process
    rank: int = 0
    world: int = 1
    launched: bool = False
    """Whether its rank is known; else it is rank 0 of a separate run."""
    first: int = 0
    """PID of the first of the ranks that their script started itself; 0: a launcher did."""
    command: tuple[str, ...]
    on_gpu: bool = False
    """Whether it has the CUDA driver loaded."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its environment; it is never written anywhere."""
    ancestors: tuple[int, ...] = ()
    started_by: tuple[str, ...] = ()
    """Command of the process that started it."""
    workers: tuple[psutil.Process, ...] = ()

    @property
    def job(self) -> tuple[str, ...]:
        """The key of its job: the values of JOB_NAMES, and the network if that is localhost.

        A script without a launcher has the PID of its first rank as the key.
        """
        if not self.launched or self.first:
            return (str(self.first or self.process.pid),)
        here = self.environment.get("MASTER_ADDR") in LOOPBACK
        names = (self.environment.get(name, "") for name in JOB_NAMES)
        return (*names, network(self.process.pid) if here else "")

    @property
    def job_name(self) -> str:
        """The job's name for a user."""
        words = []
        if self.launched and not self.first:
            run, slurm, address, port, _ = self.job
            # torchrun's run ids are random: their beginning is enough.
            named = {"run": run[:8], "Slurm job": slurm, "endpoint": f"{address}:{port}".strip(":")}
            words = [f"{kind} {word}" for kind, word in named.items() if word]
        return words[0] if words else f"process {self.first or self.process.pid}"

    @property
    def script(self) -> tuple[str, ...]:
        """The command without the interpreter and its options."""
        # One of multiprocessing goes on with what its parent runs.
        spawned = any("multiprocessing" in word for word in self.command)
        command = self.started_by if spawned else self.command
        options = takewhile(lambda word: word.startswith("-") and word != "-m", command[1:])
        words = command[1 + len(list(options)) :]
        # Before the words of the script, `ddoctor run` has its code and a folder.
        return words[2:] if words[:1] == (recorded.START,) else words

    @property
    def program(self) -> str:
        """What the copies of a script have in common: the name of its file, or of its module.

        The processes of multiprocessing have none: they are called after it.
        """
        if any("multiprocessing" in word for word in self.command):
            return "multiprocessing"
        words = self.script
        return words[1] if words[:1] == ("-m",) else os.path.basename(words[0]) if words else ""

    @property
    def local(self) -> tuple[int, ...]:
        """All ranks that were started on this host, by its environment; empty: not known."""
        if not self.launched:
            return ()
        if self.first:
            return tuple(range(self.world))
        with suppress(KeyError, ValueError):
            first = self.rank - int(self.environment["LOCAL_RANK"])
            return tuple(range(first, first + int(self.environment["LOCAL_WORLD_SIZE"])))
        here = self.environment.get("MASTER_ADDR", "") in LOOPBACK
        return tuple(range(self.world)) if here else ()

    @property
    def supervised(self) -> bool:
        """Whether torchrun, or a launcher that uses it, supervises it."""
        return "TORCHELASTIC_RUN_ID" in self.environment

    @property
    def launches(self) -> bool:
        """Whether it is a launcher, which also has torch loaded."""
        return not self.launched and any(word.endswith(LAUNCHERS) for word in self.command[:4])


@dataclass(frozen=True, kw_only=True)
class Found:
    """The ranks found, and the processes that cannot be inspected."""

    ranks: tuple[RankProcess, ...]
    foreign: tuple[int, ...] = ()
    """Python processes of other users, which cannot be inspected."""

    @property
    def jobs(self) -> Mapping[str, tuple[RankProcess, ...]]:
        """The ranks of each job, in order, by the job's name."""
        jobs: dict[tuple[str, ...], list[RankProcess]] = {}
        for one in sorted(self.ranks, key=lambda one: one.rank):
            jobs.setdefault(one.job, []).append(one)
        names = Counter(rows[0].job_name for rows in jobs.values())
        return {
            # In two containers they may be called the same.
            name if names[name] == 1 else f"process {rows[0].process.pid}": tuple(rows)
            for rows in jobs.values()
            for name in [rows[0].job_name]
        }


def find() -> Found:
    """Return all ranks on this host.

    Of several processes with the same rank, the outermost with torch loaded is the rank; the
    others are its children. Without any rank number, each process that no other one started is
    rank 0 of a separate run.
    """
    seen, foreign = _look()
    ranks = _outermost({pid: one for pid, one in seen.items() if one.launched})
    ranks = ranks or _outermost({pid: one for pid, one in seen.items() if not one.launches})
    return Found(ranks=_with_workers(ranks, seen), foreign=foreign)


def named(pids: Sequence[int]) -> Found:
    """Return the ranks of these PIDs: each is a rank, or a process that started ranks.

    Raises:
        DoctorError: a process does not exist, has no training, or is another user's.
    """
    seen, foreign = _look()
    ranks: dict[int, RankProcess] = {}
    for pid in pids:
        if not exists(pid):
            raise DoctorError(f"there is no process {pid}, or it has ended")
        if pid in foreign:
            raise DoctorError(f"process {pid} cannot be inspected: {remedy()}")
        inside = {one: row for one, row in seen.items() if one == pid or pid in row.ancestors}
        launched = {one: row for one, row in inside.items() if row.launched}
        mine = _outermost(launched) or _outermost(inside)
        if not mine:
            raise DoctorError(
                f"process {pid} is no Python process with torch loaded, and has started none: "
                "pass the PID of a rank or of its launcher"
            )
        ranks |= {one.process.pid: one for one in _with_workers(mine, seen)}
    return Found(ranks=tuple(ranks.values()), foreign=foreign)


def remedy() -> str:
    """Return how to get access to processes that deny it."""
    if os.geteuid() == 0:
        return FORBIDDEN
    return "it belongs to another user: run ddoctor as that user or as root"


def missing(rank_processes: Sequence[RankProcess]) -> tuple[int, ...]:
    """Return the ranks of this host that have exited."""
    started = {rank for one in rank_processes for rank in one.local}
    return tuple(sorted(started - {one.rank for one in rank_processes}))


def exists(pid: int) -> bool:
    """Whether it runs; a zombie has ended, and its parent has not collected it yet."""
    # The number may be negative, or too large for any process.
    with suppress(psutil.Error, ValueError, OverflowError):
        return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
    return False


def _check_proc() -> None:
    """Check that /proc shows the processes of this PID namespace.

    Raises:
        DoctorError: it does not.
    """
    with suppress(OSError):
        if os.readlink("/proc/self") == str(os.getpid()):
            return
    raise DoctorError(
        "/proc does not show the processes of this container: run `mount -t proc proc /proc` in "
        "it, or ddoctor outside of it"
    )


def _look() -> tuple[Mapping[int, RankProcess], tuple[int, ...]]:
    """Return all Python processes with torch loaded, and those of other users."""
    _check_proc()
    seen: dict[int, RankProcess] = {}
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
            parents = process.parents()
            one = RankProcess(
                process=process,
                command=tuple(process.cmdline()),
                on_gpu=DRIVER in maps,
                environment=environment,
                ancestors=tuple(parent.pid for parent in parents),
                started_by=_command(parents[:1]),
            )
            names = dialect(environment)
            with suppress(KeyError, ValueError):
                if names is not None:
                    rank, world = int(environment[names[0]]), int(environment[names[1]])
                    one = replace(one, launched=True, rank=rank, world=world)
            redaction.remember(one.environment, (*one.command, *one.started_by))
            seen[process.pid] = one
    return {**seen, **_self_started(seen)}, tuple(foreign)


def _command(processes: Sequence[psutil.Process]) -> tuple[str, ...]:
    """The command of the first; empty: there is none, or it cannot be read."""
    with suppress(psutil.Error):
        return tuple(word for one in processes[:1] for word in one.cmdline())
    return ()


def _self_started(seen: Mapping[int, RankProcess]) -> Mapping[int, RankProcess]:
    """The ranks that no launcher started, with their numbers."""
    others = {pid: one for pid, one in seen.items() if not one.launched and not one.launches}
    programs = {pid: one.program for pid, one in others.items()}
    found = self_started.groups(programs, {pid: one.ancestors for pid, one in others.items()})
    return {
        pid: replace(others[pid], launched=True, rank=rank, world=len(pids), first=pids[0])
        for pids in found
        for rank, pid in enumerate(pids)
    }


def _outermost(seen: Mapping[int, RankProcess]) -> list[RankProcess]:
    """Return the processes that no other process of the same rank has started."""
    return [
        one
        for one in seen.values()
        if not any(
            (seen[pid].launched, seen[pid].rank) == (one.launched, one.rank)
            for pid in one.ancestors
            if pid in seen
        )
    ]


def _with_workers(
    ranks: Sequence[RankProcess], seen: Mapping[int, RankProcess]
) -> tuple[RankProcess, ...]:
    """Return the ranks with their workers: forked ones look like it, spawned ones have a name."""
    workers: dict[int, list[psutil.Process]] = {one.process.pid: [] for one in ranks}
    for one in seen.values():
        # A rank may have started the others.
        nearest = next((pid for pid in one.ancestors if pid in workers), None)
        if nearest is None or one.process.pid in workers:
            continue
        spawned = any("multiprocessing" in word for word in one.command)
        helper = any(HELPERS.search(word) for word in one.command)
        if (spawned or one.command == seen[nearest].command) and not helper:
            workers[nearest].append(one.process)
    return tuple(replace(one, workers=tuple(workers[one.process.pid])) for one in ranks)
