"""Samples the ranks of a job from outside for some seconds, and summarises the samples."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from ddoctor.evidence.live import LiveLook, LiveRank, LiveWorker
from ddoctor.evidence.section import Unseen
from ddoctor.evidence.training import Frame, RankUse
from ddoctor.live.activities import activities, turns
from ddoctor.live.process_snapshots import ProcessSnapshot, Sleep, process_state, snapshots
from ddoctor.live.rank_processes import RankProcess, missing
from ddoctor.live.sampling_rate import SamplingRate
from ddoctor.live.sockets import Sockets
from ddoctor.live.source import Source
from ddoctor.live.spy import Spy, Thread
from ddoctor.proc.memory import held, swapped
from ddoctor.proc.usage import HostUse

FEWEST_SAMPLES = 5
# For memory, and for sockets if there are any to other hosts.
LOOK_EVERY_SECONDS = 0.5
# Names for the words of a job's key, in the order of the key.
CALLED = ("run", "Slurm job", "endpoint")


class Sampler:
    """Samples the ranks of one job on this host."""

    def __init__(self, rank_processes: Sequence[RankProcess], *, native: bool) -> None:
        self._ranks = rank_processes
        sampling = SamplingRate(rank_processes)
        self._rates, many = sampling.rates, sampling.crowded
        self._native = {pid: native and not many[pid] for pid in many}
        self._too_many = {one.rank: many[one.process.pid] for one in rank_processes if native}
        self._host = socket.gethostname()
        self._sources = {one.process.pid: Source(one.process) for one in rank_processes}
        self._uses = {
            one.process.pid: HostUse(one.process.pid, one.rank, self._host, len(rank_processes))
            for one in rank_processes
        }
        self._with_workers = {one.process.pid for one in rank_processes if one.workers}
        self._began = time.monotonic()
        self._first = snapshots(rank_processes)
        self._threads: dict[tuple[int, int], Thread] = {}
        self._held: dict[int, list[tuple[float, float]]] = {pid: [] for pid in many}
        """For each rank, repeatedly: MiB that it has, and that its workers have together."""
        self._sleeps = {pid: Sleep() for pid in many}
        self._in_disk: dict[int, set[bool]] = {pid: set() for pid in many}
        """For each rank, whether it was sampled in a read or write: always, at times, never."""
        self._unseen: dict[int, str] = {}
        self._sockets = Sockets([one.process.pid for one in rank_processes])

    def until(self, end: float, *, workers: bool = True) -> None:
        """Sample until ``end`` seconds after the start; ``workers`` also, which start later.

        Raises:
            DoctorError: py-spy is not installed.
        """
        with TemporaryDirectory() as folder, ExitStack() as cleanup:
            spies: dict[int, Spy] = {}
            deadline = self._began + end
            seconds = max(0.0, deadline - time.monotonic())
            for pid, source in self._sources.items():
                spies[pid] = Spy(
                    pid,
                    source,
                    seconds,
                    Path(folder),
                    rate=self._rates[pid],
                    started=workers and pid in self._with_workers,
                    native=self._native[pid],
                )
                cleanup.callback(self._let_go, spies[pid])
            for use in self._uses.values():
                use.read_counters()
                use.sample_workers()
            linked = True
            while (left := deadline - time.monotonic()) > 0:
                linked = linked and self._sockets.sample()
                self._sample_states()
                time.sleep(min(LOOK_EVERY_SECONDS, left))
            for spy in spies.values():
                spy.end()
            for use in self._uses.values():
                use.read_counters()
            for pid, spy in spies.items():
                threads, self._unseen[pid] = spy.threads()
                for one in threads:
                    known = self._threads.get((one.pid, one.tid))
                    stacks = [*known.stacks, *one.stacks] if known is not None else one.stacks
                    self._threads[one.pid, one.tid] = replace(one, stacks=stacks)

    def _sample_states(self) -> None:
        """Sample each rank's state, whether it woke up, and its memory."""
        for one in self._ranks:
            pid = one.process.pid
            own = process_state(pid)
            if own is None:
                continue
            self._sleeps[pid].look(own.sleeps)
            self._in_disk[pid].add(own.in_disk)
            workers = sum(held(worker.pid) or 0.0 for worker in one.workers)
            if own.held is not None:
                self._held[pid].append((own.held, workers))

    def _let_go(self, spy: Spy) -> None:
        """Resume a process that py-spy stopped for native frames and left stopped."""
        if not spy.stop():
            return
        (rank_process,) = (one for one in self._ranks if one.process.pid == spy.pid)
        for process in (rank_process.process, *rank_process.workers):
            with suppress(psutil.Error):
                held = process.status() == psutil.STATUS_STOPPED
                if held and self._first[process.pid].state != psutil.STATUS_STOPPED:
                    process.resume()

    def summary(self) -> tuple[LiveLook, RankUse]:
        """Return the summary of the samples so far."""
        last = snapshots(self._ranks)
        seconds = time.monotonic() - self._began
        first = self._ranks[0]
        live = LiveLook(
            host=self._host,
            job=called(first),
            world=first.world,
            seconds=round(seconds, 1),
            command=script(first.command),
            missing=missing(self._ranks),
            supervised=first.supervised,
            ranks=tuple(self._rank(one, last) for one in self._ranks),
            links=self._sockets.summary(),
            unseen=tuple(
                Unseen(
                    what=f"native frames of rank {rank}",
                    why=f"sampling its {threads} threads would pause it for long",
                )
                for rank, threads in self._too_many.items()
                if threads
            ),
        )
        use = RankUse(
            host=self._host,
            hosts=tuple(
                self._uses[pid].summary(
                    threads=self._first[pid].computing(last[pid]),
                    asked=one.environment.get("OMP_NUM_THREADS", ""),
                )
                for one in self._ranks
                for pid in [one.process.pid]
            ),
            flags=(),
        )
        return live, use

    def _rank(self, rank_process: RankProcess, last: Mapping[int, ProcessSnapshot]) -> LiveRank:
        pid = rank_process.process.pid
        old, new = self._first[pid], last[pid]
        stacks = self._stacks(pid)
        stack, still = _most(stacks)
        asleep = old.asleep(new)
        return LiveRank(
            rank=rank_process.rank,
            pid=pid,
            state=self._state(pid, new.state),
            age_seconds=round(time.time() - rank_process.process.create_time(), 1),
            cpu_seconds=round(max(0.0, new.cpu - old.cpu), 2),
            main_cpu_seconds=round(old.used(new)[0], 2),
            asleep=round(asleep, 3) if asleep is not None else None,
            resident=round(new.resident, 1),
            held=tuple(round(own, 1) for own, _ in self._held[pid]),
            workers_held=tuple(round(theirs, 1) for _, theirs in self._held[pid]),
            moved=round(max(0.0, new.moved - old.moved), 2),
            swapped=round(swapped(pid) or 0.0, 1),
            faults=max(0, new.faults - old.faults),
            wakes=max(0, new.sleeps - old.sleeps),
            longest_sleep=round(self._sleeps[pid].longest, 1),
            on_gpu=rank_process.on_gpu,
            samples=len(stacks),
            stack=stack,
            still=still,
            activities=activities(stacks, self._sources[pid], on_gpu=rank_process.on_gpu),
            turns=turns(stacks, on_gpu=rank_process.on_gpu),
            workers=tuple(self._worker(one.pid, last) for one in rank_process.workers),
            unseen=self._unseen.get(pid) or ("" if stacks else "its main thread was not sampled"),
        )

    def _state(self, pid: int, last: str) -> str:
        """Return the last state; a short wait for a disk does not count as blocked."""
        held = last != psutil.STATUS_DISK_SLEEP or self._in_disk[pid] == {True}
        return last if held else psutil.STATUS_SLEEPING

    def _worker(self, pid: int, last: Mapping[int, ProcessSnapshot]) -> LiveWorker:
        stack, still = _most(self._stacks(pid))
        return LiveWorker(
            pid=pid,
            state=last[pid].state,
            cpu_seconds=round(max(0.0, last[pid].cpu - self._first[pid].cpu), 2),
            stack=stack,
            still=still,
        )

    def _stacks(self, pid: int) -> Sequence[tuple[Frame, ...]]:
        """Return the stacks of a process's main thread."""
        main = self._threads.get((pid, pid))
        return whole(main.stacks) if main is not None else ()


def whole(stacks: Sequence[tuple[Frame, ...]]) -> Sequence[tuple[Frame, ...]]:
    """Return the stacks with the most frequent outermost frame.

    Others are torn: py-spy does not stop the thread, so it can change while it is read.
    """
    begins = [(stack[0].file, stack[0].function) if stack else None for stack in stacks]
    usual = Counter(begins).most_common(1)[0][0] if begins else None
    return [stack for stack, first in zip(stacks, begins, strict=True) if first == usual]


def called(rank_process: RankProcess) -> str:
    """Return the job's name for a user."""
    if len(rank_process.job) == 1:
        return f"process {rank_process.process.pid}"
    # torchrun's run ids are random: their beginning is enough.
    run, slurm, address, port, _ = rank_process.job
    job = (run[:8], slurm, f"{address}:{port}".strip(":"))
    words = [f"{kind} {word}" for kind, word in zip(CALLED, job, strict=False) if word]
    return words[0] if words else f"process {rank_process.process.pid}"


def script(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command without the interpreter and its options."""
    words = list(command[1:])
    while words and words[0].startswith("-") and words[0] != "-m":
        del words[0]
    return tuple(words)


def _most(stacks: Sequence[tuple[Frame, ...]]) -> tuple[tuple[Frame, ...], bool]:
    """Return the most frequent stack, and whether it is the only one."""
    if not stacks:
        return (), False
    (most, times), *_ = Counter(stacks).most_common(1)
    return most, times == len(stacks) >= FEWEST_SAMPLES
