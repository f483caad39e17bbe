"""One order to measure, followed by rank 0 until every rank has said its last word."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

from ddoctor.cluster.store import (
    HEARTBEAT,
    ClusterStore,
    Order,
    RankInfo,
    RankProgress,
    progress_key,
    section_key,
    stop_key,
)
from ddoctor.cluster.supervisor import Measuring, tick_seconds
from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.probes import ProbeRun, RankState
from ddoctor.evidence.section import Section
from ddoctor.probing.follower import why_crashed, why_hung

STALL_SECONDS = 20.0
"""No rank of a probe works longer on one step, unless it hangs."""
# After a rank has died, the others tell within this what they think of it.
ECHO_SECONDS = 1.0
# A process is looked at and ended within this, and then the rank says so.
LAST_WORD_SECONDS = 10.0

SILENT = "silent"
"""The status of a rank of which nothing is heard any more."""


class MeasurementRun:
    """One order to measure, from its beginning to the last word of every rank."""

    def __init__(
        self,
        store: ClusterStore,
        me: RankInfo,
        number: int,
        order: Order,
        ranks: Sequence[RankInfo],
    ) -> None:
        self._store, self._me, self._number, self._order = store, me, number, order
        self._tick_seconds = tick_seconds(me.world_size)
        self._hosts = {one.rank: one.host for one in ranks}
        self._words: dict[int, RankProgress] = {}
        self._heard: dict[int, float] = {}
        self.began: dict[str, float] = {}
        self.states: dict[int, RankState] = {}
        self.outcome: Literal["completed", "hung", "crashed", "interrupted"] = "interrupted"
        self.pending: str | None = order.probes[0]

    @property
    def joined(self) -> set[int]:
        """The ranks that came into the process group."""
        return {rank for rank, word in self._words.items() if word.joined}

    def watch(
        self,
        data: Path,
        deadline: float,
        join_limit: float,
        started: Callable[[str], None],
    ) -> None:
        """Follow until all is done, a rank has died, or nobody gets on any more."""
        moved = begun = time.monotonic()
        died: float | None = None
        announced = 0
        try:
            with Measuring(self._store, self._me, self._number, self._order, data) as mine:
                while True:
                    self._store.add(HEARTBEAT)
                    mine.tick()
                    now = time.monotonic()
                    if self._hear():
                        moved = now
                    for name in list(self.began)[announced:]:
                        started(f"measuring {name}")
                    announced = len(self.began)
                    self.pending = self._pending()
                    if self.pending is None:
                        self.outcome = "completed"
                        break
                    if died is None and self._dead():
                        died = now
                    if died is not None and now - died > ECHO_SECONDS:
                        self.outcome = "crashed"
                        break
                    everybody = len(self.joined) == len(self._hosts)
                    limit = moved + STALL_SECONDS if everybody else begun + join_limit
                    if now > min(limit, deadline):
                        self.outcome = "hung"
                        break
                    time.sleep(self._tick_seconds)
                self._stop(mine)
        except KeyboardInterrupt:
            self._store.set(stop_key(self._number), True)
        self.states = {} if self.outcome == "completed" else self._look()
        if self.outcome == "hung" and any(one.words for one in self.states.values()):
            self.outcome = "crashed"

    def runs(self) -> list[ProbeRun]:
        """What became of the probes that began, and of the one that was next if none did."""
        told = []
        for name in self._order.probes:
            if name == self.pending:
                break
            told.append(self._ended(name))
        if self.pending is not None:
            states = tuple(self.states.values())
            began = self.began.get(self.pending)
            told.append(
                ProbeRun(
                    probe=self.pending,
                    outcome=self.outcome,
                    reason=self._reason(states),
                    seconds=time.monotonic() - began if began is not None else 0.0,
                    ranks=states,
                )
            )
        return told

    def sections(self) -> list[Section]:
        """What was measured."""
        kinds: Any = reduce(or_, section_types())
        keys = [
            section_key(self._number, rank, name)
            for rank, word in self._words.items()
            for name, end in word.ended.items()
            if end.section
        ]
        return list(self._store.get_all(keys, kinds).values())

    def _hear(self) -> bool:
        """Take in the words of all ranks; whether anybody has made a step since."""
        keys = {progress_key(self._number, rank): rank for rank in self._hosts}
        moved = False
        now = time.monotonic()
        for key, word in self._store.get_all(keys, RankProgress).items():
            rank = keys[key]
            earlier = self._words.get(rank)
            if earlier is not None and earlier.beat == word.beat:
                continue
            moved = moved or earlier is None or earlier.steps != word.steps
            self._words[rank] = word
            self._heard[rank] = now
            for name in word.began:
                self.began.setdefault(name, now)
        return moved

    def _pending(self) -> str | None:
        """The first probe that some rank has not ended; None: all are done."""
        ended: Counter[str] = Counter()
        for word in self._words.values():
            ended.update(word.ended.keys())
        return next((one for one in self._order.probes if ended[one] < len(self._hosts)), None)

    def _dead(self) -> bool:
        everything = len(self._order.probes)
        return any(
            word.words or (word.over and len(word.ended) < everything)
            for word in self._words.values()
        )

    def _stop(self, mine: Measuring) -> None:
        """Have every process ended, and hear the last words."""
        if self.outcome != "completed":
            self._store.set(stop_key(self._number), True)
            mine.end()
        deadline = time.monotonic() + LAST_WORD_SECONDS
        while time.monotonic() < deadline:
            mine.tick()
            self._hear()
            if sum(word.over for word in self._words.values()) == len(self._hosts):
                return
            self._store.add(HEARTBEAT)
            time.sleep(self._tick_seconds)
        self._store.set(stop_key(self._number), True)

    def _look(self) -> dict[int, RankState]:
        now = time.monotonic()
        return {
            rank: RankState(
                rank=rank,
                host=host,
                last=word.doing,
                age=word.age + (now - self._heard[rank] if not word.over else 0.0),
                steps=word.steps,
                pid=word.pid,
                status=word.status if word.over else SILENT,
                exit_code=word.exit_code,
                words=word.words,
            )
            if (word := self._words.get(rank)) is not None
            else RankState(rank=rank, host=host, last="starting", age=0.0, status=SILENT)
            for rank, host in self._hosts.items()
        }

    def _ended(self, name: str) -> ProbeRun:
        ends: Mapping[int, Any] = {rank: word.ended[name] for rank, word in self._words.items()}
        first = ends[min(ends)]
        return ProbeRun(
            probe=name,
            outcome=first.outcome,
            reason=first.reason,
            seconds=max(end.seconds for end in ends.values()),
        )

    def _reason(self, states: Sequence[RankState]) -> str:
        if self.outcome == "interrupted":
            return "interrupted"
        silent = [one for one in states if one.status == SILENT]
        killed = any((one.exit_code or 0) < 0 for one in states)
        if silent and (self.outcome == "hung" or not killed):
            first = silent[0]
            return f"nothing is heard of rank {first.rank} on {first.host} any more"
        if self.outcome == "crashed":
            return why_crashed(states, "a rank ended without a word")
        return why_hung(states)
