"""Rank 0's part: call the roll, have all hosts looked at, have the probes run, lose nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ddoctor.cluster.measurement import SILENT, STALL_SECONDS, MeasurementRun
from ddoctor.cluster.store import (
    FINISHED,
    HEARTBEAT,
    JOINED,
    ClusterStore,
    FoundProcess,
    Order,
    RankInfo,
    StoreLost,
    found_key,
    host_key,
    order_key,
    rank_key,
)
from ddoctor.cluster.supervisor import (
    INTERRUPTED,
    collect_host,
    find_processes,
    tick_seconds,
    unpack,
)
from ddoctor.control_arms import Candidate, Measured, compared
from ddoctor.errors import DoctorError
from ddoctor.evidence.arms import ControlArm, ControlArms
from ddoctor.evidence.joining import Joining, JoiningRank
from ddoctor.evidence.probes import AllReduce, ProbeRun, ProbeRuns, RankState
from ddoctor.evidence.section import Absence, Absent, Evidence, Section

# The limit of all collectors, and the way of what they saw.
COLLECT_SECONDS = 45.0
FIND_SECONDS = 5.0
FINISH_SECONDS = 5.0
LIMIT_SECONDS = 280.0
"""For all probes together but a burn: a full run stays under five minutes."""

ARM = "allreduce"
"""The probe by which a change is tried."""
TURNS = 2
# All ranks are known to be there: who does not join now is kept from it by what is tried.
ARM_JOIN_SECONDS = 30.0

LAUNCHED = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""How many processes the scheduler started."""


class Coordinator:
    """Gives the orders, and gathers what became of them."""

    def __init__(
        self,
        store: ClusterStore,
        me: RankInfo,
        *,
        data: Path,
        join_limit: float,
        burn: float = 0.0,
    ) -> None:
        self._store, self._me, self._data = store, me, data
        self.options: Sequence[str] = ()
        """Words for the processes that measure."""
        self._join_limit = join_limit
        self._limit = LIMIT_SECONDS + burn
        self._tick_seconds = tick_seconds(me.world_size)
        self._number = -1
        self._ranks: list[RankInfo] = []
        self._missing: tuple[int, ...] = ()
        self._sections: list[Section] = []
        self._absences: list[Absence] = []
        self._runs: list[ProbeRun] = []
        self._states: dict[int, RankState] = {}
        self._joined: set[int] | None = None
        self._found: tuple[FoundProcess, ...] = ()
        self._backend = ""
        self._gpus_in_use = ""
        self._deadline = time.monotonic() + self._limit

    def examine(self, probes: Sequence[str], started: Callable[[str], None]) -> Evidence:
        """Everything that there is to see and to measure, whatever happens meanwhile.

        Raises:
            DoctorError: the probes cannot be run on these hosts; the message says why.
        """
        try:
            self._wait_for_ranks(started)
            self._collect(started)
            if self._missing:
                self._find_missing()
                why = f"rank {_listed(self._missing)} did not come in {self._join_limit:.0f} s"
                self._runs = [ProbeRun(probe=probes[0], outcome="hung", reason=why)]
                self._runs += _skipped(probes[1:], why)
            else:
                self._measure(probes, started)
        except KeyboardInterrupt:
            self._absences.append(Absence(section="the rest", why="interrupted", crashed=True))
        except StoreLost as error:
            self._absences.append(Absence(section="the rest", why=str(error), crashed=True))
        return Evidence(self._all())

    def prove(self, candidates: Sequence[Candidate], started: Callable[[str], None]) -> Evidence:
        """Try changes in turns without and with it, A B A B, as far as there is time; all evidence.

        The processes of every turn are new: libraries read their variables once.
        """
        whole = not self._missing and not any(one.crashed for one in self._absences)
        arms: list[ControlArm] = []
        try:
            for candidate in candidates if whole else ():
                without, with_it = [], []
                for turn in range(TURNS):
                    started(f"trying {candidate}, turn {turn + 1} of {TURNS}")
                    without.append(self._turn(None))
                    with_it.append(self._turn(candidate))
                if time.monotonic() > self._deadline:
                    break
                arms.append(compared(candidate, without, with_it))
        except KeyboardInterrupt:
            self._absences.append(Absence(section="the rest", why="interrupted", crashed=True))
        except StoreLost as error:
            self._absences.append(Absence(section="the rest", why=str(error), crashed=True))
        if arms:
            self._sections.append(ControlArms(arms=tuple(arms)))
        return Evidence(self._all())

    def _turn(self, candidate: Candidate | None) -> Measured:
        order = Order(
            kind="measure",
            probes=(ARM,),
            gpus_in_use=self._gpus_in_use,
            options=tuple(self.options),
            environment=candidate.changes if candidate else {},
            hosts=candidate.hosts if candidate else (),
        )
        measurement = MeasurementRun(self._store, self._me, self._order(order), order, self._ranks)
        limit = min(self._join_limit, ARM_JOIN_SECONDS)
        measurement.watch(self._data, self._deadline, limit, lambda name: None)
        if measurement.outcome == "interrupted":
            raise KeyboardInterrupt
        if any(one.status == SILENT for one in measurement.states.values()):
            raise StoreLost(measurement.runs()[-1].reason)
        if measurement.outcome != "completed":
            return measurement.runs()[-1].reason
        (sweep,) = (one for one in measurement.sections() if isinstance(one, AllReduce))
        return sweep

    def finish(self) -> None:
        """Let the others go, and wait until they have gone."""
        # torchrun waits for minutes for the other hosts, unless a rank of its own has failed.
        code = 1 if self._missing or any(one.status for one in self._states.values()) else 0
        try:
            self._order(Order(kind="finish", code=code))
            deadline = time.monotonic() + FINISH_SECONDS
            # Before the roll is called, all are still to come: not every launcher ends them.
            others = (len(self._ranks) or self._me.world_size) - 1
            while self._store.add(FINISHED, 0) < others and time.monotonic() < deadline:
                time.sleep(self._tick_seconds)
        except StoreLost:
            return

    def _order(self, order: Order) -> int:
        self._number += 1
        self._store.set(order_key(self._number), order)
        return self._number

    def _tick(self) -> None:
        self._store.add(HEARTBEAT)
        time.sleep(self._tick_seconds)

    def _wait_for_ranks(self, started: Callable[[str], None]) -> None:
        size = self._me.world_size
        deadline = time.monotonic() + self._join_limit
        heard: dict[int, RankInfo] = {}
        while True:
            called = range(1, self._store.add(JOINED, 0) + 1)
            keys = {rank_key(one): one for one in called if one not in heard}
            for key, info in self._store.get_all(keys, RankInfo).items():
                heard[keys[key]] = info
            came = {one.rank for one in heard.values()}
            if len(came) >= size or time.monotonic() > deadline:
                break
            started(f"{len(came)} of {size} ranks have come")
            self._tick()
        self._ranks = sorted(heard.values(), key=lambda one: one.rank)
        self._missing = tuple(sorted(set(range(size)) - came))
        self._demand_equals()

    def _demand_equals(self) -> None:
        for one in self._ranks:
            if one.unfit:
                raise DoctorError(f"rank {one.rank} on {one.host}: {one.unfit}")
            if one.version != self._me.version:
                raise DoctorError(
                    f"ddoctor is {one.version} on {one.host} and {self._me.version} on "
                    f"{self._me.host}: install the same version on every host"
                )

    def _collect(self, started: Callable[[str], None]) -> None:
        leaders = [one for one in self._ranks if one.leads]
        self._order(Order(kind="collect", peers=tuple(leaders)))
        started(f"looking at {len(leaders)} hosts")
        deadline = time.monotonic() + COLLECT_SECONDS
        found = {self._me.rank: collect_host(leaders, self._me)}
        others = {host_key(one.rank): one for one in leaders if one.rank != self._me.rank}
        while others and time.monotonic() < deadline:
            for key, packed in self._store.get_all(others, str).items():
                found[others.pop(key).rank] = packed
            self._tick()
        for rank in sorted(found):
            self._sections += unpack(found[rank])
        for one in others.values():
            why = f"{one.host} did not answer within {COLLECT_SECONDS:.0f} s"
            self._sections.append(
                Absent(
                    host=one.host,
                    sections=(Absence(section="everything", why=why, crashed=True),),
                )
            )

    def _find_missing(self) -> None:
        self._order(Order(kind="find", missing=self._missing))
        found = list(find_processes(self._missing, self._me.host))
        keys = {
            found_key(one.rank) for one in self._ranks if one.leads and one.rank != self._me.rank
        }
        deadline = time.monotonic() + FIND_SECONDS
        while keys and time.monotonic() < deadline:
            for key, processes_there in self._store.get_all(keys, tuple[FoundProcess, ...]).items():
                keys.discard(key)
                found += processes_there
            self._tick()
        self._found = tuple(found)

    def _measure(self, probes: Sequence[str], started: Callable[[str], None]) -> None:
        self._deadline = deadline = time.monotonic() + self._limit
        self._gpus_in_use = "; ".join(
            dict.fromkeys(
                f"{one.host}: {one.gpus_in_use}" for one in self._ranks if one.gpus_in_use
            )
        )
        gpus = not self._gpus_in_use and all(one.visible_gpus for one in self._ranks)
        self._backend = "nccl" if gpus else "gloo"
        waiting = list(probes)
        while waiting:
            order = Order(
                kind="measure",
                probes=tuple(waiting),
                gpus_in_use=self._gpus_in_use,
                options=tuple(self.options),
            )
            measurement = MeasurementRun(
                self._store, self._me, self._order(order), order, self._ranks
            )
            try:
                measurement.watch(self._data, deadline, self._join_limit, started)
            finally:
                self._joined = (self._joined or set()) | measurement.joined
                self._states = measurement.states or self._states
                told = measurement.runs()
                self._runs += told
                waiting = waiting[len(told) :]
                self._sections += measurement.sections()
            if measurement.outcome == "interrupted":
                self._runs += [ProbeRun(probe=name, outcome="interrupted") for name in waiting]
                raise KeyboardInterrupt
            why = ""
            if waiting and not measurement.began:
                why = f"the ranks could not join, see {told[-1].probe}"
            elif waiting and time.monotonic() > deadline - STALL_SECONDS:
                why = f"no time was left after {told[-1].probe} {told[-1].outcome}"
            elif waiting and any(one.status == SILENT for one in measurement.states.values()):
                why = f"a rank is not heard of any more, see {told[-1].probe}"
            elif waiting and any(one.words == INTERRUPTED for one in measurement.states.values()):
                why = f"a rank was interrupted, see {told[-1].probe}"
            if why:
                self._runs += _skipped(waiting, why)
                waiting = []

    def _all(self) -> tuple[Section, ...]:
        hosts = sorted({one.host for one in self._ranks})
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
            endpoint=f"{self._store.address}:{self._store.port}",
            limit=self._join_limit,
            world_size=self._me.world_size,
            ranks=(
                *(self._came(one) for one in self._ranks),
                *(self._did_not_come(rank) for rank in self._missing),
            ),
            launched=int(os.environ[name]) if name else None,
            launched_by=name,
        )

    def _came(self, info: RankInfo) -> JoiningRank:
        state = self._states.get(info.rank)
        return JoiningRank(
            rank=info.rank,
            host=info.host,
            pid=state.pid if state else info.pid,
            local_rank=info.local_rank,
            world_size=info.world_size,
            address=info.address,
            visible_gpus=info.visible_gpus,
            visible_devices=info.visible_devices,
            came=True,
            joined=None if self._joined is None else info.rank in self._joined,
            last=state.last if state else "",
            age=state.age if state else None,
            status=state.status if state else "",
        )

    def _did_not_come(self, rank: int) -> JoiningRank:
        found = next((one for one in self._found if one.rank == rank), None)
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


def _skipped(names: Sequence[str], reason: str) -> list[ProbeRun]:
    return [ProbeRun(probe=name, outcome="skipped", reason=reason) for name in names]


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown
