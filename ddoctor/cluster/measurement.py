"""One measurement order: rank 0 follows it until every rank has sent its final report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

from ddoctor.cluster.failure_reasons import why_crashed, why_hung
from ddoctor.cluster.measuring import Measuring
from ddoctor.cluster.store import ClusterStore, Order, RankInfo, RankProgress, key
from ddoctor.evidence.bundle import any_section
from ddoctor.evidence.probes import ProbeRun, RankState
from ddoctor.evidence.section import Section

STALL_SECONDS = 20.0
"""Limit for one step of a probe; a rank that exceeds it hangs."""
# Time for the other ranks to report their errors after a rank has failed.
ECHO_SECONDS = 1.0
# Time to sample and end a rank's process and to send the final report.
FINAL_REPORT_SECONDS = 10.0

SILENT = "silent"
"""Status of a rank that no longer reports."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of ranks and probes, in seconds."""

    deadline: float
    """End of all probes on the monotonic clock."""
    join: float = inf
    """Limit until all ranks have joined."""
    probe: float = inf
    """Limit of one probe."""
    relaunch: float = STALL_SECONDS
    """Time that must be left to run the rest of the probes in new processes."""


class MeasurementRun:
    """One measurement order, from its start to the final report of every rank."""

    def __init__(
        self,
        store: ClusterStore,
        here: Sequence[RankInfo],
        order: Order,
        ranks: Sequence[RankInfo],
    ) -> None:
        self._store, self._here, self._order = store, here, order
        self._number = store.give(order)
        self._hosts = {one.rank: one.host for one in ranks}
        self._progress: dict[int, RankProgress] = {}
        self._heard: dict[int, float] = {}
        self.began: dict[str, float] = {}
        self.states: dict[int, RankState] = {}
        self.outcome: Literal["completed", "hung", "crashed", "interrupted"] = "interrupted"
        self.pending: str | None = order.probes[0]

    @property
    def joined(self) -> set[int]:
        """The ranks that joined the process group."""
        return {rank for rank, progress in self._progress.items() if progress.joined}

    def watch(self, data: Path, limits: Limits, started: Callable[[str], None]) -> None:
        """Run the processes of the ranks that are ``here``, and follow all ranks.

        Returns when all probes are done, a rank has died, or a limit is over.
        """
        moved = begun = time.monotonic()
        died: float | None = None
        try:
            with Measuring(self._store, self._here, self._number, self._order, data) as measuring:
                while True:
                    measuring.tick()
                    now = time.monotonic()
                    known = len(self.began)
                    if self._read_progress():
                        moved = now
                    for name in list(self.began)[known:]:
                        started(name)
                    self.pending = self._pending()
                    if self.pending is None:
                        self.outcome = "completed"
                        break
                    if died is None and self._dead():
                        died = now
                    if died is not None and now - died > ECHO_SECONDS:
                        self.outcome = "crashed"
                        break
                    complete = len(self.joined) == len(self._hosts)
                    limit = moved + STALL_SECONDS if complete else begun + limits.join
                    probe_limit = self.began.get(self.pending, inf) + limits.probe
                    if now > min(limit, probe_limit, limits.deadline):
                        self.outcome = "hung"
                        break
                    time.sleep(self._store.tick)
                self._stop(measuring)
        except KeyboardInterrupt:
            self._store.set(key("stop", self._number), True)
            self._read_progress()
            self.pending = self._pending()
        self.states = {} if self.outcome == "completed" else self._rank_states()
        if self.outcome == "hung" and any(one.words for one in self.states.values()):
            self.outcome = "crashed"

    def runs(self) -> list[ProbeRun]:
        """Results of the probes that began; if none did, of the first pending probe."""
        runs = []
        for name in self._order.probes:
            if name == self.pending:
                break
            runs.append(self._ended(name))
        if self.pending is not None:
            states = tuple(self.states.values())
            began = self.began.get(self.pending)
            runs.append(
                ProbeRun(
                    probe=self.pending,
                    outcome=self.outcome,
                    reason=self._reason(states),
                    seconds=time.monotonic() - began if began is not None else 0.0,
                    ranks=states,
                )
            )
        return runs

    def sections(self) -> list[Section]:
        """All measured sections."""
        keys = {
            (rank, name): key("section", self._number, rank, name)
            for rank, progress in self._progress.items()
            for name, end in progress.ended.items()
            if end.section
        }
        return list(self._store.get_all(keys, any_section()).values())

    def _read_progress(self) -> bool:
        """Read the progress of all ranks; return whether any rank has made a step."""
        keys = {rank: key("progress", self._number, rank) for rank in self._hosts}
        moved = False
        now = time.monotonic()
        for rank, progress in self._store.get_all(keys, RankProgress).items():
            earlier = self._progress.get(rank)
            if earlier == progress:
                continue
            moved = moved or earlier is None or earlier.steps != progress.steps
            self._progress[rank] = progress
            self._heard[rank] = now
            for name in progress.began:
                self.began.setdefault(name, now)
        return moved

    def _pending(self) -> str | None:
        """The first probe that not all ranks have ended; None: all are done."""
        ended: Counter[str] = Counter()
        for progress in self._progress.values():
            ended.update(progress.ended.keys())
        return next((one for one in self._order.probes if ended[one] < len(self._hosts)), None)

    def _dead(self) -> bool:
        everything = len(self._order.probes)
        return any(
            progress.words or (progress.over and len(progress.ended) < everything)
            for progress in self._progress.values()
        )

    def _stop(self, measuring: Measuring) -> None:
        """End every process, and wait for the final reports."""
        if self.outcome != "completed":
            self._store.set(key("stop", self._number), True)
            measuring.end()
        deadline = time.monotonic() + FINAL_REPORT_SECONDS
        while time.monotonic() < deadline:
            measuring.tick()
            self._read_progress()
            if sum(progress.over for progress in self._progress.values()) == len(self._hosts):
                return
            time.sleep(self._store.tick)
        self._store.set(key("stop", self._number), True)

    def _rank_states(self) -> dict[int, RankState]:
        now = time.monotonic()
        states = {}
        for rank, host in self._hosts.items():
            progress = self._progress.get(rank, RankProgress(rank=rank, host=host))
            states[rank] = RankState(
                rank=rank,
                host=host,
                last=progress.last,
                age=progress.age + now - self._heard.get(rank, now),
                steps=progress.steps,
                pid=progress.pid,
                status=progress.status if progress.over else SILENT,
                exit_code=progress.exit_code,
                words=progress.words,
            )
        return states

    def _ended(self, name: str) -> ProbeRun:
        ends = [self._progress[rank].ended[name] for rank in sorted(self._progress)]
        first = ends[0]
        return ProbeRun(
            probe=name,
            outcome=first.outcome,
            reason=first.reason,
            seconds=max(end.seconds for end in ends),
        )

    def _reason(self, states: Sequence[RankState]) -> str:
        if self.outcome == "interrupted":
            return "interrupted"
        silent = [one for one in states if one.status == SILENT]
        killed = any((one.exit_code or 0) < 0 for one in states)
        if silent and (self.outcome == "hung" or not killed):
            first = silent[0]
            return f"rank {first.rank} on {first.host} no longer answers"
        why = why_crashed(states) if self.outcome == "crashed" else why_hung(states)
        survivors = [str(pid) for one in self._progress.values() for pid in one.survivors]
        if survivors:
            why += f"; process {', '.join(survivors)} hangs in the kernel and cannot be ended"
        return why
