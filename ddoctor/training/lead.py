"""Rank 0: watch the script, decide when all ranks stop, and gather all records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from secrets import token_hex
from statistics import median
from time import perf_counter

from ddoctor import console
from ddoctor.analysis import endings
from ddoctor.cluster.store import (
    ENDING_SILENT_SECONDS,
    ENDING_TICKS,
    FINISHED,
    SILENT_SECONDS,
    ClusterStore,
    decompressed,
    free_port,
    key,
)
from ddoctor.evidence.run_history import RunHistory
from ddoctor.evidence.section import Evidence
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.recorder.tape import COLLECTIVE
from ddoctor.training.child import Child, NewChild
from ddoctor.training.events import Events
from ddoctor.training.messages import UNRECORDED, Now, Record, TurnOrder, Unrecorded
from ddoctor.training.own_ranks import OwnRanks
from ddoctor.training.reporting import Followers, host_tick
from ddoctor.training.run import Run
from ddoctor.training.warm_up import MOST, settled, warm_up
from ddoctor.training.whole_run import Judge, Show, WholeRun

# Every rank must know the step at which to stop before the fastest rank reaches it.
NEWS_SECONDS = 2.0
# With gloo, the other ranks fail as soon as their connections break; with NCCL they hang.
AFTER_FAILURE_SECONDS = 8.0
# All ranks wait for each other, and none uses a CPU: no collective takes longer.
STUCK_SECONDS = 30.0
# A rank that is blocked outside of collectives may wait for a disk or a download.
BLOCKED_SECONDS = 90.0
# After the last step: measuring the loader alone, and the exit of the script.
LEAVE_SECONDS = 60.0
RECORDS_SECONDS = 30.0
STOPPED_SECONDS = 10.0
# Between two looks: this process was stopped itself, as by Ctrl-Z, and perhaps the ranks with it.
PAUSED_SECONDS = 10.0
FINISH_SECONDS = 5.0


class Lead:
    """Runs the script on all ranks, one turn after the other."""

    def __init__(
        self, store: ClusterStore, child: Child, new_child: NewChild, command: tuple[str, ...]
    ) -> None:
        self._store, self._child, self._new_child = store, child, new_child
        self._command = command
        self._size = child.launched.world_size
        self._turn = store.give(TurnOrder())
        self._lost: dict[int, Now | None] = {}

    def run(self, steps: int, seconds: float, started: Callable[[str], None]) -> Run:
        """Follow the current turn to its end, and return the records of all ranks.

        Raises:
            Unrecorded: a rank cannot be recorded.
        """
        followers = Followers(self._store, self._turn, self._store.tick)
        watch = Watch(self._child, followers, steps, seconds, started)
        if self._size == 1:
            watch.own_ranks = OwnRanks(self._child.pid)
        return self._followed(watch, steps)

    def whole_run(
        self, events: Events, judge: Judge, show: Show | None, *, end_hung: bool
    ) -> tuple[Run, RunHistory]:
        """Follow the script to its own end; return the records of its last steps and its history.

        ``end_hung``: end a run that hangs.

        Raises:
            Unrecorded: a rank cannot be recorded.
        """
        child, tick = self._child, host_tick(self._store, self._child.launched)
        followers = Followers(self._store, self._turn, tick, channel=token_hex(16))
        whole = WholeRun(child, followers, events, judge, self._command, show)
        watch = Watch(child, followers, MOST, inf, _say_nothing, whole, end_hung)
        run = self._followed(watch, MOST)
        return run, whole.history(run.records)

    def _followed(self, watch: Watch, steps: int) -> Run:
        watch.run()
        records = self._records(watch.nows, watch.silent)
        # A script that finished earlier never received a step at which to stop.
        done = settled([row.end - row.begin for row in records[0].rows], steps)
        return Run(
            records=records,
            command=self._command,
            warm_up=watch.warm_up or done,
            limit=watch.limit,
            lost=self._lost,
            hang_states=watch.hang_states,
            looked=watch.looked,
        )

    def again(
        self, change: Sequence[str], steps: int, seconds: float, grow: SweepRequest | None = None
    ) -> Run:
        """Run the script again, with changed settings or growing micro-batches."""
        order = TurnOrder(change=tuple(change), grow=grow, port=free_port())
        self._turn = self._store.give(order)
        self._child = self._new_child(self._turn, order)
        return self.run(steps, seconds, _say_nothing)

    @property
    def interrupted(self) -> bool:
        """Whether a signal has requested the end of the run."""
        return self._child.interrupted

    def finish(self) -> None:
        """End the other ranks and wait for them, because torchrun kills them with rank 0."""
        self._store.give(TurnOrder(over=True))
        others = self._size - 1 - len(self._lost)
        self._store.wait_until(FINISHED, others, seconds=FINISH_SECONDS * self._store.crowding)

    def _records(self, nows: Mapping[int, Now], silent: Collection[int]) -> list[Record]:
        own = self._child.record()
        keys = {
            rank: key("record", self._turn, rank)
            for rank in range(1, self._size)
            if rank not in silent
        }
        limit = RECORDS_SECONDS * self._store.crowding
        texts = self._store.wait_for(keys, str, seconds=limit)
        others = range(1, self._size)
        self._lost = {rank: nows.get(rank) for rank in others if rank not in texts}
        return [own, *(decompressed(texts[rank], Record) for rank in sorted(texts))]


@dataclass
class Watch:
    """Follows one turn."""

    child: Child
    followers: Followers
    steps: int
    seconds: float
    started: Callable[[str], None]
    whole: WholeRun | None = None
    """Follows the run to its end; then nothing stops the script."""
    end_hung: bool = False
    own_ranks: OwnRanks | None = None
    """Finds ranks that the script starts itself, besides its first process or as that."""
    looked: Evidence | None = None
    """What these were seen to do."""
    limit: str = ""
    hang_states: Mapping[int, Now] = field(default_factory=dict)
    warm_up: int = 0
    nows: dict[int, Now] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    """The ranks that no longer answer."""
    _heard: dict[int, float] = field(default_factory=dict)
    _told: set[int] = field(default_factory=set)
    """The ranks of which it was said that they are stopped."""
    _moved: dict[int, float] = field(default_factory=dict)
    _stop_at: int | None = None
    _left_at: float = 0.0
    _failed_at: float | None = None
    _ended: bool = False
    _most_steps: int = 0

    def __post_init__(self) -> None:
        self._size = self.child.launched.world_size
        self._last_step = self._looked = perf_counter()
        self._deadline = self._last_step + self.seconds

    def run(self) -> None:
        """Follow the turn until the script has ended on every rank."""
        while True:
            self._read_states()
            if self.child.over and all(
                rank in self.silent or (rank in self.nows and self.nows[rank].over)
                for rank in range(self._size)
            ):
                return
            self._decide()
            self.child.watch(self.followers.tick, self.whole.glance if self.whole else None)

    def _read_states(self) -> None:
        moment = perf_counter()
        if moment - self._looked > PAUSED_SECONDS * self.followers.store.crowding:
            self._wait_longer(moment - self._looked)
        self._looked = moment
        for rank, now in self.followers.states().items():
            # A rank that runs sends another age each time.
            if self.nows.get(rank) != now or now.over:
                self._heard[rank] = moment
            self.nows[rank] = now
        self.nows[0] = self.child.now()
        if lost := [(rank, now) for rank, now in self.nows.items() if now.unrecorded]:
            # Those that stop early would leave the others waiting for them.
            self.followers.want(stop=UNRECORDED)
            rank, now = min(lost)
            raise Unrecorded(f"rank {rank} on {now.host}: {now.unrecorded}")
        steps = max(now.steps for now in self.nows.values())
        if steps > self._most_steps:
            self._most_steps, self._last_step = steps, perf_counter()

    def _wait_longer(self, seconds: float) -> None:
        """Count no time in which nothing was looked at: ranks that were stopped are no hang."""
        for times in (self._heard, self._moved):
            for rank in times:
                times[rank] += seconds
        if self.whole is not None:
            self.whole.wait_longer(seconds)
        self._deadline += seconds

    def _decide(self) -> None:
        moment = perf_counter()
        if self._stop_at is None and self.whole is None:
            self._find_stop()
        self.silent = tuple(self._find_silent(moment))
        if self._ended:
            return
        self._tell_stopped()
        failed = any(now.over and now.exit_code for now in self.nows.values())
        if failed and self._failed_at is None:
            self._failed_at = moment
        if self.silent:
            self._end(f"{endings.ranks(self.silent)} no longer answered", hung=True)
        elif self._failed_at is not None and moment - self._failed_at > AFTER_FAILURE_SECONDS:
            self._end("a rank failed, and the other ranks waited for it", hung=True)
        elif self.whole is not None:
            if self.whole.look(self.nows) and self.end_hung:
                self._end("no rank made progress", hung=True)
        elif self._stuck(moment):
            self._end("no rank made progress", hung=True)
        elif self._looks():
            self._end("the script starts its ranks itself")
        elif self._leaving(moment) > LEAVE_SECONDS:
            self._end("the script did not end after its last step")
        elif moment > self._deadline and not self._left_at:
            self._out_of_time(moment)

    def _looks(self) -> bool:
        if self.own_ranks is not None and self._stop_at is None and not self.child.over:
            self.looked = self.own_ranks.look()
        return self.looked is not None

    def _find_silent(self, moment: float) -> Iterator[int]:
        since, silence = moment, SILENT_SECONDS * self.followers.store.crowding
        if self.child.interrupted_at is not None:
            # Then a rank that never came comes no more.
            since = self.child.interrupted_at
            silence = max(ENDING_SILENT_SECONDS, ENDING_TICKS * self.followers.tick)
        for rank in range(1, self._size):
            if moment - self._heard.get(rank, since) > silence:
                yield rank

    def _tell_stopped(self) -> None:
        for rank, now in self.nows.items():
            if now.stopped and now.age > STOPPED_SECONDS and rank not in self._told:
                self._told.add(rank)
                console.say(
                    f"ddoctor: rank {rank} (pid {now.pid} on {now.host}) is stopped by a signal: "
                    f"`kill -CONT {now.pid}` lets it continue"
                )

    def _find_stop(self) -> None:
        times = self.child.step_times()
        done = self.child.done
        self.started(f"step {done}" if done else "waiting for the first step")
        first = warm_up(times, self.steps)
        own = self.own_ranks
        # The others would wait for a rank that stops.
        if first is None or (own is not None and (own.seen or own.found())):
            return
        self.warm_up = first
        self._stop(max(first + self.steps, self._ahead()))

    def _ahead(self) -> int:
        """A step that no rank has reached when the order to stop arrives."""
        most = max(now.steps for now in self.nows.values())
        # Of short steps, most are only counted: the recorded ones say too late that they got long.
        times = self.child.last_step_times(20)
        typical = median(times) if times else 1.0
        return most + ceil((NEWS_SECONDS + self.followers.tick) / max(typical, 1e-4)) + 1

    def _stop(self, at: int) -> None:
        self._stop_at = at
        self.child.stop_at(at)
        self.followers.want(stop=at)

    def _leaving(self, moment: float) -> float:
        """Seconds since a rank took its last step or ended; 0: no rank has."""
        stop = self._stop_at
        if stop is None or not any(now.over or now.steps >= stop for now in self.nows.values()):
            return 0.0
        self._left_at = self._left_at or moment
        return moment - self._left_at

    def _out_of_time(self, moment: float) -> None:
        times = self.child.step_times()
        limit = f"{self.seconds:g} s were over"
        if self._stop_at is None:
            if not times:
                return self._end(f"no optimizer took a step within {self.seconds:g} s")
            if moment - self._last_step >= max(NEWS_SECONDS, 3 * median(times)):
                return self._end(limit)
            self.warm_up = min(3, len(times) // 2)
        # --steps would take longer than --seconds: stop at the next possible step, which is looked
        # for again: the first steps seem short where the host launches them ahead of its GPU.
        at = self._ahead()
        if self._stop_at is None or at < self._stop_at:
            self.limit = limit
            self._stop(at)
        self._deadline = moment + NEWS_SECONDS

    def _stuck(self, moment: float) -> bool:
        """Whether all ranks are blocked: none uses a CPU, and none changes its phase."""
        for rank, now in self.nows.items():
            before = self._moved.get(rank)
            if before is None or now.over or now.busy or now.age < moment - before:
                self._moved[rank] = moment
        if not self._most_steps and not all(now.phase == COLLECTIVE for now in self.nows.values()):
            return False
        alive = {rank: now for rank, now in self.nows.items() if not now.over}
        # A stopped rank is its user's choice.
        if any(now.stopped for now in alive.values()):
            return False
        if not alive or len(self.nows) < self._size:
            return False
        still = min(moment - self._moved[rank] for rank in alive)
        waiting = all(now.phase == COLLECTIVE for now in alive.values())
        return still > (STUCK_SECONDS if waiting else BLOCKED_SECONDS)

    def _end(self, why: str, *, hung: bool = False) -> None:
        self._ended = True
        self.limit = why
        self.hang_states = dict(self.nows) if hung else {}
        self.followers.want(end=True)
        self.child.end(sample=True, tick=self.followers.tick)


def _say_nothing(text: str) -> None:
    """What is under way; the training has the terminal."""
