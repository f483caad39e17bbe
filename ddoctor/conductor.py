"""Rank 0's part: call the roll, have all hosts looked at, have the probes run, lose nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.joining import Joining, JoiningRank
from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.evidence.section import Absence, Absent, Evidence, Section
from ddoctor.fleet import (
    CONDUCTOR,
    FINISHED,
    ROLL,
    Fleet,
    Lost,
    Muster,
    Order,
    Sought,
    Word,
    host_key,
    muster_key,
    order_key,
    section_key,
    sought_key,
    stop_key,
    word_key,
)
from ddoctor.flight import why_crashed, why_hung
from ddoctor.supervisor import TICK_SECONDS, Measuring, look, seek, unpack

# No rank of a probe works longer on one step, unless it hangs.
STALL_SECONDS = 20.0
# After a rank has died, the others tell within this what they think of it.
ECHO_SECONDS = 1.0
# A process is looked at and ended within this, and then the rank says so.
LAST_WORD_SECONDS = 10.0
# The limit of all collectors, and the way of what they saw.
LOOK_SECONDS = 45.0
SEEK_SECONDS = 5.0
FINISH_SECONDS = 5.0
LIMIT_SECONDS = 280.0
"""For all probes together: a full run stays under five minutes."""

LAUNCHED = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""How many processes the scheduler started."""

SILENT = "silent"


class Conductor:
    """Gives the orders, and gathers what became of them."""

    def __init__(self, fleet: Fleet, me: Muster, *, data: Path, join_limit: float) -> None:
        self._fleet, self._me, self._data = fleet, me, data
        self._join_limit = join_limit
        self._number = -1
        self._musters: list[Muster] = []
        self._missing: tuple[int, ...] = ()
        self._sections: list[Section] = []
        self._absences: list[Absence] = []
        self._runs: list[ProbeRun] = []
        self._states: dict[int, RankState] = {}
        self._joined: set[int] | None = None
        self._sought: tuple[Sought, ...] = ()
        self._backend = ""

    def examine(self, probes: Sequence[str], started: Callable[[str], None]) -> Evidence:
        """Everything that there is to see and to measure, whatever happens meanwhile.

        Raises:
            DoctorError: the probes cannot be run on these hosts; the message says why.
        """
        try:
            self._call_the_roll(started)
            self._look(started)
            if self._missing:
                self._seek()
                why = f"rank {_listed(self._missing)} did not come in {self._join_limit:.0f} s"
                self._runs = [ProbeRun(probe=probes[0], outcome="hung", reason=why)]
                self._runs += _skipped(probes[1:], why)
            else:
                self._measure(probes, started)
        except KeyboardInterrupt:
            self._absences.append(Absence(section="the rest", why="interrupted", crashed=True))
        except Lost as error:
            self._absences.append(Absence(section="the rest", why=str(error), crashed=True))
        return Evidence(self._all())

    def finish(self) -> None:
        """Let the others go, and wait until they have gone."""
        # torchrun waits for minutes for the other hosts, unless a rank of its own has failed.
        code = 1 if self._missing or any(one.status for one in self._states.values()) else 0
        try:
            self._order(Order(kind="finish", code=code))
            deadline = time.monotonic() + FINISH_SECONDS
            others = len(self._musters) - 1
            while self._fleet.count(FINISHED, 0) < others and time.monotonic() < deadline:
                time.sleep(TICK_SECONDS)
        except Lost:
            return

    def _order(self, order: Order) -> int:
        self._number += 1
        self._fleet.tell(order_key(self._number), order)
        return self._number

    def _tick(self) -> None:
        self._fleet.count(CONDUCTOR)
        time.sleep(TICK_SECONDS)

    def _call_the_roll(self, started: Callable[[str], None]) -> None:
        size = self._me.world_size
        deadline = time.monotonic() + self._join_limit
        heard: dict[int, Muster] = {}
        while True:
            called = range(1, self._fleet.count(ROLL, 0) + 1)
            keys = {muster_key(one): one for one in called if one not in heard}
            for key, muster in self._fleet.hear_all(keys, Muster).items():
                heard[keys[key]] = muster
            came = {one.rank for one in heard.values()}
            if len(came) >= size or time.monotonic() > deadline:
                break
            started(f"{len(came)} of {size} ranks have come")
            self._tick()
        self._musters = sorted(heard.values(), key=lambda one: one.rank)
        self._missing = tuple(sorted(set(range(size)) - came))
        self._demand_equals()

    def _demand_equals(self) -> None:
        for one in self._musters:
            if one.unfit:
                raise DoctorError(f"rank {one.rank} on {one.host}: {one.unfit}")
            if one.version != self._me.version:
                raise DoctorError(
                    f"ddoctor is {one.version} on {one.host} and {self._me.version} on "
                    f"{self._me.host}: install the same version on every host"
                )

    def _look(self, started: Callable[[str], None]) -> None:
        leaders = [one for one in self._musters if one.leads]
        self._order(Order(kind="look", peers=tuple(leaders)))
        started(f"looking at {len(leaders)} hosts")
        deadline = time.monotonic() + LOOK_SECONDS
        found = {self._me.rank: look(leaders, self._me)}
        others = {host_key(one.rank): one for one in leaders if one.rank != self._me.rank}
        while others and time.monotonic() < deadline:
            for key, packed in self._fleet.hear_all(others, str).items():
                found[others.pop(key).rank] = packed
            self._tick()
        for rank in sorted(found):
            self._sections += unpack(found[rank])
        for one in others.values():
            why = f"{one.host} did not answer within {LOOK_SECONDS:.0f} s"
            self._sections.append(
                Absent(
                    host=one.host,
                    sections=(Absence(section="everything", why=why, crashed=True),),
                )
            )

    def _seek(self) -> None:
        self._order(Order(kind="seek", missing=self._missing))
        found = list(seek(self._missing, self._me.host))
        keys = {
            sought_key(one.rank) for one in self._musters if one.leads and one.rank != self._me.rank
        }
        deadline = time.monotonic() + SEEK_SECONDS
        while keys and time.monotonic() < deadline:
            for key, sought in self._fleet.hear_all(keys, tuple[Sought, ...]).items():
                keys.discard(key)
                found += sought
            self._tick()
        self._sought = tuple(found)

    def _measure(self, probes: Sequence[str], started: Callable[[str], None]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        hands_off = "; ".join(
            dict.fromkeys(f"{one.host}: {one.hands_off}" for one in self._musters if one.hands_off)
        )
        gpus = not hands_off and all(one.visible_gpus for one in self._musters)
        self._backend = "nccl" if gpus else "gloo"
        waiting = list(probes)
        while waiting:
            order = Order(kind="measure", probes=tuple(waiting), hands_off=hands_off)
            voyage = Voyage(self._fleet, self._me, self._order(order), order, self._musters)
            try:
                voyage.watch(self._data, deadline, self._join_limit, started)
            finally:
                self._joined = (self._joined or set()) | voyage.joined
                self._states = voyage.states or self._states
                told = voyage.runs()
                self._runs += told
                waiting = waiting[len(told) :]
                self._sections += voyage.sections()
            if voyage.outcome == "interrupted":
                self._runs += [ProbeRun(probe=name, outcome="interrupted") for name in waiting]
                raise KeyboardInterrupt
            why = ""
            if waiting and not voyage.began:
                why = f"the ranks could not join, see {told[-1].probe}"
            elif waiting and time.monotonic() > deadline - STALL_SECONDS:
                why = f"no time was left after {told[-1].probe} {told[-1].outcome}"
            elif waiting and any(one.status == SILENT for one in voyage.states.values()):
                why = f"a rank is not heard of any more, see {told[-1].probe}"
            if why:
                self._runs += _skipped(waiting, why)
                waiting = []

    def _all(self) -> tuple[Section, ...]:
        hosts = sorted({one.host for one in self._musters})
        common = hosts[0] if len(hosts) == 1 else ""
        runs = ProbeRuns(
            host=common,
            runs=tuple(self._runs),
            backend=self._backend,
            world_size=self._me.world_size,
        )
        here = Absent(host=common, sections=tuple(self._absences))
        mine = next(
            (one for one in self._sections if isinstance(one, Absent) and one.host == common),
            None,
        )
        if mine is not None:
            here = msgspec.structs.replace(here, sections=(*mine.sections, *here.sections))
        measured = (
            one if one.host else msgspec.structs.replace(one, host=common) for one in self._sections
        )
        return (*measured, self._joining(), runs, *([here] if here.sections else []))

    def _joining(self) -> Joining:
        name = next((one for one in LAUNCHED if os.environ.get(one, "").isdecimal()), "")
        return Joining(
            endpoint=f"{self._fleet.address}:{self._fleet.port}",
            limit=self._join_limit,
            world_size=self._me.world_size,
            ranks=(
                *(self._came(one) for one in self._musters),
                *(self._did_not_come(rank) for rank in self._missing),
            ),
            launched=int(os.environ[name]) if name else None,
            launched_by=name,
        )

    def _came(self, muster: Muster) -> JoiningRank:
        state = self._states.get(muster.rank)
        return JoiningRank(
            rank=muster.rank,
            host=muster.host,
            pid=state.pid if state else muster.pid,
            local_rank=muster.local_rank,
            world_size=muster.world_size,
            address=muster.address,
            visible_gpus=muster.visible_gpus,
            visible_devices=muster.visible_devices,
            came=True,
            joined=None if self._joined is None else muster.rank in self._joined,
            last=state.last if state else "",
            age=state.age if state else None,
            status=state.status if state else "",
        )

    def _did_not_come(self, rank: int) -> JoiningRank:
        found = next((one for one in self._sought if one.rank == rank), None)
        if found is not None:
            return JoiningRank(
                rank=rank,
                host=found.host,
                pid=found.pid,
                last="starting" if found.pid else "",
                age=found.age,
                status=found.status,
            )
        return JoiningRank(rank=rank)


class Voyage:
    """One order to measure, from its beginning to the last word of every rank."""

    def __init__(
        self, fleet: Fleet, me: Muster, number: int, order: Order, musters: Sequence[Muster]
    ) -> None:
        self._fleet, self._me, self._number, self._order = fleet, me, number, order
        self._hosts = {one.rank: one.host for one in musters}
        self._words: dict[int, Word] = {}
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
            with Measuring(self._fleet, self._me, self._number, self._order, data) as mine:
                while True:
                    self._fleet.count(CONDUCTOR)
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
                    time.sleep(TICK_SECONDS)
                self._stop(mine)
        except KeyboardInterrupt:
            self._fleet.tell(stop_key(self._number), True)
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
        return list(self._fleet.hear_all(keys, kinds).values())

    def _hear(self) -> bool:
        """Take in the words of all ranks; whether anybody has made a step since."""
        keys = {word_key(self._number, rank): rank for rank in self._hosts}
        moved = False
        now = time.monotonic()
        for key, word in self._fleet.hear_all(keys, Word).items():
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
            self._fleet.tell(stop_key(self._number), True)
            mine.end()
        deadline = time.monotonic() + LAST_WORD_SECONDS
        while time.monotonic() < deadline:
            mine.tick()
            self._hear()
            if sum(word.over for word in self._words.values()) == len(self._hosts):
                return
            self._fleet.count(CONDUCTOR)
            time.sleep(TICK_SECONDS)
        self._fleet.tell(stop_key(self._number), True)

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
        if self.outcome == "hung" and silent:
            first = silent[0]
            return f"nothing is heard of rank {first.rank} on {first.host} any more"
        if self.outcome == "crashed":
            return why_crashed(states, "a rank ended without a word")
        return why_hung(states)


def _skipped(names: Sequence[str], reason: str) -> list[ProbeRun]:
    return [ProbeRun(probe=name, outcome="skipped", reason=reason) for name in names]


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
