"""Samples the ranks of a job from outside for some seconds, and summarises the samples."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import msgspec
import psutil

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveLook, LiveRank, LiveWorker
from ddoctor.evidence.section import Unseen
from ddoctor.evidence.threads import ScriptThread, ScriptThreads, busiest
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.live.activities import activities, framework, turns
from ddoctor.live.process_snapshots import ProcessSnapshot, Sleep, process_state, snapshot
from ddoctor.live.rank_processes import RankProcess, exists, missing
from ddoctor.live.sampling_rate import NATIVE_RATE, SamplingRate
from ddoctor.live.sockets import Sockets
from ddoctor.live.source import Source
from ddoctor.live.spy import Spy, Stack
from ddoctor.proc import usage
from ddoctor.proc.memory import held, swapped
from ddoctor.proc.usage import HostUse

FEWEST_SAMPLES = 5
# For memory, and for sockets if there are any to other hosts.
LOOK_EVERY_SECONDS = 0.5
ENDED = "it ended while it was sampled"

StacksInTime = Sequence[Stack]


class _SampledRank:
    """What was sampled of one rank so far."""

    def __init__(self, one: RankProcess, use: HostUse) -> None:
        self.one, self.pid, self.use = one, one.process.pid, use
        self.source = Source(one.process)
        self.first = {process.pid: snapshot(process) for process in self.processes}
        self.unseen = ""
        self.others: dict[int, Counter[Stack]] = {}
        """Samples of its other threads by the user's frames, by their number."""
        self._held: list[tuple[float, float]] = []
        """Repeatedly: MiB that it has, and that its workers have together."""
        self._sleep = Sleep()
        self._workers = frozenset(one.pid for one in self.one.workers)
        self._restarts = 0
        self._in_disk: set[bool] = set()
        """Whether it was sampled in a read or write: always, at times, never."""

    @property
    def processes(self) -> tuple[psutil.Process, ...]:
        """Its own process, and its workers."""
        return self.one.process, *self.one.workers

    def sample_state(self) -> None:
        """Sample its state, whether it woke up, its memory, and which workers it has."""
        own = process_state(self.pid)
        if own is not None:
            self._sleep.look(own.sleeps)
            self._in_disk.add(own.in_disk)
            workers = sum(held(worker.pid) or 0.0 for worker in self.one.workers)
            if own.held_mib is not None:
                self._held.append((own.held_mib, workers))
        if now := frozenset(usage.data_workers(self.pid)):
            self._restarts += bool(self._workers) and self._workers.isdisjoint(now)
            self._workers = now

    def let_go(self, spy: Spy) -> None:
        """Stop py-spy, and resume processes that it stopped for native frames and left stopped."""
        for process in self.processes if spy.stop() else ():
            with suppress(psutil.Error):
                stopped = process.status() == psutil.STATUS_STOPPED
                if stopped and self.first[process.pid].state != psutil.STATUS_STOPPED:
                    process.resume()

    def summary(
        self, stacks_of: Mapping[int, StacksInTime]
    ) -> tuple[LiveRank, RankHost, list[ScriptThread]]:
        """Return the summary of the samples so far; ``stacks_of``: its main threads, by PID."""
        last = {process.pid: snapshot(process) for process in self.processes}
        old, new = self.first[self.pid], last[self.pid]
        stacks = stacks_of.get(self.pid, ())
        stack, still = _most(stacks)
        asleep = old.asleep(new)
        on_gpu = self.one.on_gpu
        # A short wait for a disk does not count as blocked.
        blocked = new.state != psutil.STATUS_DISK_SLEEP or self._in_disk == {True}
        live = LiveRank(
            rank=self.one.rank,
            pid=self.pid,
            state=new.state if blocked else psutil.STATUS_SLEEPING,
            age_seconds=round(time.time() - self.one.process.create_time(), 1),
            cpu_seconds=round(max(0.0, new.cpu_seconds - old.cpu_seconds), 2),
            main_cpu_seconds=round(old.used(new)[self.pid], 2),
            asleep=round(asleep, 3) if asleep is not None else None,
            resident=round(new.resident_mib, 1),
            held=tuple(round(own, 1) for own, _ in self._held),
            workers_held=tuple(round(theirs, 1) for _, theirs in self._held),
            moved=round(max(0.0, new.moved_mib - old.moved_mib), 2),
            swapped=round(swapped(self.pid) or 0.0, 1),
            faults=max(0, new.major_faults - old.major_faults),
            wakes=max(0, new.sleeps - old.sleeps),
            longest_sleep=round(self._sleep.longest, 1),
            on_gpu=on_gpu,
            samples=len(stacks),
            stack=stack,
            still=still,
            within=self.source.contexts(stack) if still else (),
            activities=activities(stacks, self.source, on_gpu=on_gpu),
            turns=turns(stacks, on_gpu=on_gpu),
            workers=tuple(
                self._worker(one.pid, last, stacks_of.get(one.pid, ())) for one in self.one.workers
            ),
            restarts=self._restarts,
            framework=framework(stacks),
            unseen=self.unseen or ("" if stacks else "its main thread was not sampled"),
        )
        asked = self.one.environment.get("OMP_NUM_THREADS", "")
        computing = old.computing(new, without=self.others)
        return live, self.use.summary(threads=computing, asked=asked), self._threads(old, new)

    def _threads(self, old: ProcessSnapshot, new: ProcessSnapshot) -> list[ScriptThread]:
        """Its other threads that run code of the user's."""
        seconds, used = max(new.moment - old.moment, 1e-3), old.used(new)
        return [
            ScriptThread(
                rank=self.one.rank,
                place=usual[-1],
                within=self.source.contexts(usual),
                cpus=round(cpus, 3),
                seconds=round(seconds, 1),
            )
            for thread, stacks in self.others.items()
            if thread in used
            for cpus in [used[thread] / seconds]
            for usual in [_usual(stacks, cpus)]
        ]

    def _worker(
        self, pid: int, last: Mapping[int, ProcessSnapshot], stacks: StacksInTime
    ) -> LiveWorker:
        stack, still = _most(stacks)
        return LiveWorker(
            pid=pid,
            state=last[pid].state,
            cpu_seconds=round(max(0.0, last[pid].cpu_seconds - self.first[pid].cpu_seconds), 2),
            stack=stack,
            still=still,
        )


class Sampler:
    """Samples the ranks of one job on this host."""

    def __init__(
        self, rank_processes: Sequence[RankProcess], sampling: SamplingRate, *, native: bool
    ) -> None:
        self._host, self._native, self._sampling = socket.gethostname(), native, sampling
        self._began, self._spent = time.monotonic(), _spent()
        self._ranks = [
            _SampledRank(one, HostUse(one.process.pid, one.rank, self._host, len(rank_processes)))
            for one in rank_processes
        ]
        self._stacks: dict[int, list[Stack]] = {}
        """The stacks of each main thread, by PID."""
        self._sockets = Sockets([one.process.pid for one in rank_processes])
        self._has_links = True
        """Whether any rank is connected to another host, as far as is known."""

    def until(self, end: float, *, workers: bool = True) -> None:
        """Sample until ``end`` seconds after the start; ``workers`` also, which start later.

        Raises:
            DoctorError: py-spy is not installed.
        """
        with ExitStack() as cleanup:
            deadline = self._began + end
            seconds = max(0.0, deadline - time.monotonic())
            spies: list[tuple[_SampledRank, Spy]] = []
            for rank in self._ranks:
                native = self._native and not self._sampling.crowded[rank.pid]
                rate = self._sampling.rates[rank.pid]
                spy = Spy(
                    rank.pid,
                    rank.source,
                    seconds,
                    rate=min(rate, NATIVE_RATE) if native else rate,
                    started=workers and bool(rank.one.workers),
                    native=native,
                )
                spies.append((rank, spy))
                cleanup.callback(rank.let_go, spy)
            for rank in self._ranks:
                rank.use.read_counters()
                rank.use.sample_workers()
            while (left := deadline - time.monotonic()) > 0:
                self._has_links = self._has_links and self._sockets.sample()
                for rank in self._ranks:
                    rank.sample_state()
                # In step with the clock: a trend needs as many looks as the seconds promise.
                since = (time.monotonic() - self._began) % LOOK_EVERY_SECONDS
                time.sleep(min(LOOK_EVERY_SECONDS - since, left))
            for _, spy in spies:
                spy.end()
            for rank in self._ranks:
                rank.use.read_counters()
            for rank, spy in spies:
                found, unseen = spy.stacks()
                # py-spy calls it no Python process.
                rank.unseen = ENDED if unseen and not exists(rank.pid) else unseen
                for pid, stacks in found.main.items():
                    self._stacks.setdefault(pid, []).extend(stacks)
                for thread, own in found.others.items():
                    rank.others.setdefault(thread, Counter()).update(own)

    def summary(self) -> tuple[LiveLook, RankUse, ScriptThreads]:
        """Return the summary of the samples so far."""
        seconds = time.monotonic() - self._began
        stacks = {pid: whole(rows) for pid, rows in self._stacks.items()}
        found = [rank.summary(stacks) for rank in self._ranks]
        rows = [rank.one for rank in self._ranks]
        live = LiveLook(
            host=self._host,
            job=rows[0].job_name,
            world=rows[0].world,
            seconds=round(seconds, 1),
            command=rows[0].script,
            missing=missing(rows),
            supervised=rows[0].supervised,
            ranks=tuple(rank for rank, *_ in found),
            links=self._sockets.summary(),
            unseen=tuple(
                Unseen(
                    what=f"native frames of rank {one.rank}",
                    why=f"sampling its {threads} threads would pause it for long",
                )
                for one in rows
                if self._native and (threads := self._sampling.crowded[one.process.pid])
            ),
        )
        others = usage.neighbours([one.use.used() for one in self._ranks], _spent() - self._spent)
        hosts = tuple(msgspec.structs.replace(use, neighbours=others) for _, use, _ in found)
        threads_of_all = tuple(one for *_, rows in found for one in rows)
        return (
            live,
            RankUse(host=self._host, hosts=hosts, flags=()),
            ScriptThreads(host=self._host, threads=threads_of_all),
        )


def _spent() -> float:
    """CPU seconds of the py-spy processes that have ended."""
    return sum(os.times()[2:4])


def whole(stacks: StacksInTime) -> StacksInTime:
    """Return the stacks with the most frequent outermost frame.

    Others are torn: py-spy does not stop the thread, so it can change while it is read.
    """
    begins = [(stack[0].file, stack[0].function) if stack else None for stack in stacks]
    usual = Counter(begins).most_common(1)[0][0] if begins else None
    return [stack for stack, first in zip(stacks, begins, strict=True) if first == usual]


def _usual(stacks: Counter[Stack], cpus: float) -> Stack:
    """Return the most frequent stack at the line that shows what a thread does."""
    lines = Counter[Frame]()
    for stack, samples in stacks.items():
        lines[stack[-1]] += samples
    place = busiest(lines, cpus)
    return max((one for one in stacks if one[-1] == place), key=lambda one: stacks[one])


def _most(stacks: StacksInTime) -> tuple[Stack, bool]:
    """Return the most frequent stack, and whether it is the only one."""
    if not stacks:
        return (), False
    (most, times), *_ = Counter(stacks).most_common(1)
    return most, times == len(stacks) >= FEWEST_SAMPLES
