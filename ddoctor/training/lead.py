"""Rank 0: watch the script, decide when all ranks stop, and gather all records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import median
from time import perf_counter

from ddoctor.cluster.store import FINISHED, HEARTBEAT, ClusterStore, decompressed, free_port
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.recorder.tape import COLLECTIVE
from ddoctor.training.child import Child
from ddoctor.training.follow import NewChild, pause
from ddoctor.training.messages import (
    Now,
    Record,
    Stop,
    TurnOrder,
    end_key,
    now_key,
    record_key,
    stop_key,
    turn_key,
)
from ddoctor.training.warm_up import settled, warm_up

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
FINISH_SECONDS = 5.0


class Lead:
    """Runs the script on all ranks, one turn after the other."""

    def __init__(self, store: ClusterStore, child: Child, new_child: NewChild) -> None:
        self._store, self._child, self._new_child = store, child, new_child
        self._size = child.launched.world_size
        self._turn = 0
        self.limit = ""
        """Why the first turn ended before its steps were done."""
        self.warm_up = 0
        self.hung = False
        """Whether ddoctor ended the first turn because it made no progress."""
        self.hang_states: Mapping[int, Now] = {}
        """State of each rank then; ending the first rank unblocks the others."""
        self.lost: tuple[int, ...] = ()
        """Ranks that sent no record."""

    def run(self, steps: int, seconds: float, started: Callable[[str], None]) -> list[Record]:
        """Follow the current turn to its end, and return the records of all ranks."""
        watch = _Watch(self._child, self._turn, steps, seconds, self._store, started)
        watch.run()
        self.limit, self.hung, self.hang_states = watch.limit, watch.hung, watch.hang_states
        records = self._records()
        # A script that finished earlier never received a step at which to stop.
        self.warm_up = watch.warm_up or settled(
            [row.end - row.begin for row in records[0].rows], steps
        )
        return records

    def again(
        self, change: Sequence[str], steps: int, seconds: float, grow: SweepRequest | None = None
    ) -> list[Record]:
        """Run the script again, with changed settings or growing micro-batches."""
        self._turn += 1
        order = TurnOrder(change=tuple(change), grow=grow, port=free_port())
        self._store.set(turn_key(self._turn), order)
        self._child = self._new_child(self._turn, order)
        return self.run(steps, seconds, lambda text: None)

    @property
    def interrupted(self) -> bool:
        """Whether a signal has requested the end of the run."""
        return self._child.interrupted

    def finish(self) -> None:
        """End the other ranks and wait for them, because torchrun kills them with rank 0."""
        self._store.set(turn_key(self._turn + 1), TurnOrder(over=True))
        others = self._size - 1 - len(self.lost)
        self._store.wait_until(FINISHED, others, seconds=FINISH_SECONDS)

    def _records(self) -> list[Record]:
        own = self._child.record()
        keys = {record_key(self._turn, rank): rank for rank in range(1, self._size)}
        texts = self._store.wait_for(keys, str, seconds=RECORDS_SECONDS)
        self.lost = tuple(rank for key, rank in keys.items() if key not in texts)
        return [own, *(decompressed(texts[key], Record) for key in keys if key in texts)]


class _Watch:
    """Follows one turn."""

    def __init__(
        self,
        child: Child,
        turn: int,
        steps: int,
        seconds: float,
        store: ClusterStore,
        started: Callable[[str], None],
    ) -> None:
        self._child, self._turn, self._steps, self._store = child, turn, steps, store
        self._started = started
        self._deadline = perf_counter() + seconds
        self._seconds = seconds
        self._size = child.launched.world_size
        self._nows: dict[int, Now] = {}
        self._moved: dict[int, float] = {}
        self._stop_at: int | None = None
        self._stop_seen = 0.0
        self._failed_at: float | None = None
        self._ended = False
        self._last_step = perf_counter()
        self._most_steps = 0
        self.limit = ""
        self.hung = False
        self.hang_states: Mapping[int, Now] = {}
        self.warm_up = 0

    def run(self) -> None:
        """Follow the turn until the script has ended on every rank."""
        wait = pause(self._size)
        while True:
            self._read_states()
            if self._child.over and all(
                rank in self._nows and self._nows[rank].over for rank in range(self._size)
            ):
                return
            self._decide()
            if self._child.overdue:
                self._child.end(sample=False)
            self._child.sample()
            if self._child.over:
                time.sleep(0.1)
            else:
                self._child.wait(wait)

    def _read_states(self) -> None:
        self._store.add(HEARTBEAT)
        keys = {now_key(self._turn, rank): rank for rank in range(1, self._size)}
        for key, now in self._store.get_all(keys, Now).items():
            self._nows[keys[key]] = now
        self._nows[0] = self._child.now()
        steps = max(now.steps for now in self._nows.values())
        if steps > self._most_steps:
            self._most_steps, self._last_step = steps, perf_counter()

    def _decide(self) -> None:
        moment = perf_counter()
        if self._stop_at is None:
            self._find_stop()
        else:
            self._child.use.read_counters()
        if self._ended:
            return
        failed = any(now.over and now.exit_code for now in self._nows.values())
        if failed and self._failed_at is None:
            self._failed_at = moment
        if self._failed_at is not None and moment - self._failed_at > AFTER_FAILURE_SECONDS:
            self._end("a rank failed, and the other ranks waited for it", hung=True)
        elif self._stuck(moment):
            self._end("no rank made progress", hung=True)
        elif self._stop_at is not None and self._past_stop(moment):
            self._end("the script did not end after its last step")
        elif moment > self._deadline and self._stop_at is None:
            self._out_of_time(moment)

    def _find_stop(self) -> None:
        times = self._child.step_times()
        done = self._child.done
        self._started(f"step {done}" if done else "waiting for the first step")
        first = warm_up(times, self._steps)
        if first is None:
            return
        self.warm_up = first
        self._stop(max(first + self._steps, self._ahead(times)))

    def _ahead(self, times: Sequence[float]) -> int:
        """A step that no rank has reached when the order to stop arrives."""
        most = max(now.steps for now in self._nows.values())
        typical = median(times[-20:]) if times else 1.0
        return most + ceil(NEWS_SECONDS / max(typical, 1e-4)) + 1

    def _stop(self, at: int) -> None:
        self._stop_at = at
        self._child.stop_at(at)
        self._child.use.measure_worker()
        self._store.set(stop_key(self._turn), Stop(at=at))

    def _past_stop(self, moment: float) -> bool:
        leaving = any(now.over or now.steps >= (self._stop_at or 0) for now in self._nows.values())
        if leaving and not self._stop_seen:
            self._stop_seen = moment
        late = bool(self._stop_seen) and moment - self._stop_seen > LEAVE_SECONDS
        slow = moment > self._deadline and not self._stop_seen
        if slow:
            # --steps would take longer than --seconds: stop at the next possible step.
            times = self._child.step_times()
            at = self._ahead(times)
            if at < (self._stop_at or 0):
                self.limit = f"{self._seconds:g} s were over"
                self._stop(at)
            self._deadline = moment + LEAVE_SECONDS
        return late

    def _out_of_time(self, moment: float) -> None:
        times = self._child.step_times()
        self.limit = f"{self._seconds:g} s were over"
        if times and moment - self._last_step < max(NEWS_SECONDS, 3 * median(times)):
            self.warm_up = min(3, len(times) // 2)
            self._stop(self._ahead(times))
            self._deadline = moment + LEAVE_SECONDS
        else:
            self._end(
                f"{self._seconds:g} s were over"
                if times
                else f"no optimizer took a step within {self._seconds:g} s"
            )

    def _stuck(self, moment: float) -> bool:
        """Whether all ranks are blocked: none uses a CPU, and none changes its phase."""
        for rank, now in self._nows.items():
            before = self._moved.get(rank)
            if before is None or now.over or now.busy or now.age < moment - before:
                self._moved[rank] = moment
        if not self._most_steps and not all(now.phase == COLLECTIVE for now in self._nows.values()):
            return False
        alive = {rank: now for rank, now in self._nows.items() if not now.over}
        if not alive or len(self._nows) < self._size:
            return False
        still = min(moment - self._moved[rank] for rank in alive)
        waiting = all(now.phase == COLLECTIVE for now in alive.values())
        return still > (STUCK_SECONDS if waiting else BLOCKED_SECONDS)

    def _end(self, why: str, *, hung: bool = False) -> None:
        self._ended, self.hung = True, hung
        self.limit = why
        self.hang_states = dict(self._nows) if hung else {}
        self._store.set(end_key(self._turn), True)
        self._child.end(sample=True)
