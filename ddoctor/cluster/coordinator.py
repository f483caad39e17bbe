"""Rank 0's coordinator: wait for all ranks, collect from every host, and run the probes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ddoctor.cluster.measurement import SILENT, Limits, MeasurementRun
from ddoctor.cluster.probe_series import ProbeSeries, skipped
from ddoctor.cluster.store import FINISHED, JOINED, ClusterStore, Order, RankInfo, StoreLost, key
from ddoctor.cluster.supervisor import answer, unpack
from ddoctor.control_arms import Candidate, Measured, compared
from ddoctor.errors import DoctorError
from ddoctor.evidence.cluster_probes import ControlArm, ControlArms
from ddoctor.evidence.joining import Joining, JoiningRank
from ddoctor.evidence.probes import AllReduce, ProbeRun, ProbeRuns
from ddoctor.evidence.section import Absence, Absent, Evidence, Section

# The limit of all collectors, and the time to send their sections.
COLLECT_SECONDS = 45.0
FIND_SECONDS = 10.0
FINISH_SECONDS = 5.0
LIMIT_SECONDS = 280.0
"""Limit for all probes except a burn; it keeps a full run under five minutes."""

ARM = "allreduce"
"""The probe that measures control runs."""
TURNS = 2
# All ranks joined before: a rank that does not join now is blocked by the tried change.
ARM_JOIN_SECONDS = 30.0

LAUNCHED = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables in which schedulers store the number of processes that they started."""


class Coordinator:
    """Sends orders to all ranks and gathers their results."""

    def __init__(
        self,
        store: ClusterStore,
        me: RankInfo,
        data: Path,
        join_limit: float,
        burn: float,
    ) -> None:
        self._store, self._me, self._data = store, me, data
        self.options: Sequence[str] = ()
        """Options for the measuring processes."""
        self._join_limit = join_limit
        self._limit = LIMIT_SECONDS + burn
        self._ranks: list[RankInfo] = []
        self._missing: tuple[int, ...] = ()
        self._sections: list[Section] = []
        self._absences: list[Absence] = []
        self._series = ProbeSeries(store, [me], self._ranks)
        self._found: list[JoiningRank] = []
        """Processes of the missing ranks."""
        self._backend = ""
        self._gpus_in_use = ""
        self._deadline = time.monotonic() + self._limit

    def examine(self, probes: Sequence[str], started: Callable[[str], None]) -> Evidence:
        """Return the sections of all hosts and all measurements; a failure keeps the earlier ones.

        Raises:
            DoctorError: the probes cannot run on these hosts; the message says why.
        """
        with self._keeping_results():
            self._wait_for_ranks(started)
            self._collect(started)
            if self._missing:
                order = Order(kind="find", missing=self._missing)
                answers = self._ask_hosts(order, tuple[JoiningRank, ...], FIND_SECONDS)
                self._found = [one for found in answers.values() for one in found]
                why = f"{_listed(self._missing)} did not join within {self._join_limit:.0f} s"
                hung = ProbeRun(probe=probes[0], outcome="hung", reason=why)
                self._series.runs += [hung, *skipped(probes[1:], why)]
            else:
                self._measure(probes, started)
        return Evidence(self._all())

    @contextmanager
    def _keeping_results(self) -> Iterator[None]:
        try:
            yield
        except (KeyboardInterrupt, StoreLost) as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            self._absences.append(Absence(section="the rest", why=why, crashed=True))

    def prove(self, candidates: Sequence[Candidate], started: Callable[[str], None]) -> Evidence:
        """Run control runs: alternately without and with each change (A B A B), while time is left.

        Returns all evidence. Every measurement starts new processes, because libraries read their
        variables only once.
        """
        whole = not self._missing and not any(one.crashed for one in self._absences)
        arms: list[ControlArm] = []
        with self._keeping_results():
            for candidate in candidates if whole else ():
                without, with_it = [], []
                for turn in range(TURNS):
                    started(f"trying {candidate}, turn {turn + 1} of {TURNS}")
                    without.append(self._turn(None))
                    with_it.append(self._turn(candidate))
                if time.monotonic() > self._deadline:
                    break
                arms.append(compared(candidate, without, with_it))
        if arms:
            self._sections.append(ControlArms(arms=tuple(arms)))
        return Evidence(self._all())

    def _turn(self, candidate: Candidate | None) -> Measured:
        order = self._order((ARM,), candidate)
        measurement = MeasurementRun(self._store, [self._me], order, self._ranks)
        join = min(self._join_limit, ARM_JOIN_SECONDS)
        limits = Limits(deadline=self._deadline, join=join)
        measurement.watch(self._data, limits, lambda name: None)
        if measurement.outcome == "interrupted":
            raise KeyboardInterrupt
        if any(one.status == SILENT for one in measurement.states.values()):
            raise StoreLost(measurement.runs()[-1].reason)
        if measurement.outcome != "completed":
            return measurement.runs()[-1].reason
        (sweep,) = (one for one in measurement.sections() if isinstance(one, AllReduce))
        return sweep

    def finish(self) -> None:
        """Order all other ranks to end, and wait until they have."""
        # torchrun waits minutes for the other hosts, unless a rank on its host has failed.
        code = 1 if self._missing or any(one.status for one in self._series.states.values()) else 0
        try:
            self._store.give(Order(kind="finish", code=code))
            # A missing rank may still join: not every launcher ends the others.
            others = (len(self._ranks) or self._me.world_size) - 1
            self._store.wait_until(FINISHED, others, seconds=FINISH_SECONDS)
        except StoreLost:
            return

    def _ask_hosts(self, order: Order, kind: Any, seconds: float) -> dict[int, Any]:
        """The answers of all hosts that answer within ``seconds``, by the host's first rank."""
        deadline = time.monotonic() + seconds
        number = self._store.give(order)
        others = [one.rank for one in self._ranks if one.leads and one.rank != self._me.rank]
        own = answer(order, self._me)
        keys = {rank: key("answer", number, rank) for rank in others}
        left = deadline - time.monotonic()
        return {self._me.rank: own, **self._store.wait_for(keys, kind, seconds=left)}

    def _wait_for_ranks(self, started: Callable[[str], None]) -> None:
        size = self._me.world_size
        deadline = time.monotonic() + self._join_limit
        infos: dict[int, RankInfo] = {}
        while True:
            called = range(1, self._store.add(JOINED, 0) + 1)
            keys = {one: key("rank", one) for one in called if one not in infos}
            infos |= self._store.get_all(keys, RankInfo)
            came = {one.rank for one in infos.values()}
            if len(came) >= size or time.monotonic() > deadline:
                break
            started(f"{len(came)} of {size} ranks have joined")
            time.sleep(self._store.tick)
        self._ranks += sorted(infos.values(), key=lambda one: one.rank)
        self._missing = tuple(sorted(set(range(size)) - came))
        self._check_ranks()

    def _check_ranks(self) -> None:
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
        started(f"collecting from {len(leaders)} hosts")
        order = Order(kind="collect", peers=tuple(leaders))
        found = self._ask_hosts(order, str, COLLECT_SECONDS)
        for one in leaders:
            if packed := found.get(one.rank):
                self._sections += unpack(packed)
            else:
                why = f"{one.host} did not answer within {COLLECT_SECONDS:.0f} s"
                absence = Absence(section="everything", why=why, crashed=True)
                self._sections.append(Absent(host=one.host, sections=(absence,)))

    def _measure(self, probes: Sequence[str], started: Callable[[str], None]) -> None:
        self._deadline = time.monotonic() + self._limit
        self._gpus_in_use = "; ".join(
            dict.fromkeys(
                f"{one.host}: {one.gpus_in_use}" for one in self._ranks if one.gpus_in_use
            )
        )
        gpus = not self._gpus_in_use and all(one.visible_gpus for one in self._ranks)
        self._backend = "nccl" if gpus else "gloo"
        limits = Limits(deadline=self._deadline, join=self._join_limit)
        self._series.measure(
            probes,
            self._order,
            self._data,
            limits,
            lambda name: started(f"measuring {name}"),
        )

    def _order(self, probes: Sequence[str], candidate: Candidate | None = None) -> Order:
        return Order(
            kind="measure",
            probes=tuple(probes),
            gpus_in_use=self._gpus_in_use,
            options=tuple(self.options),
            environment=candidate.changes if candidate else {},
            hosts=candidate.hosts if candidate else (),
        )

    def _all(self) -> tuple[Section, ...]:
        hosts = sorted({one.host for one in self._ranks})
        common = hosts[0] if len(hosts) == 1 else ""
        runs = ProbeRuns(
            host=common,
            runs=tuple(self._series.runs),
            backend=self._backend,
            world_size=self._me.world_size,
        )
        collected = Evidence(self._sections).of(Absent, common)
        absences = (*(collected.sections if collected else ()), *self._absences)
        here = Absent(host=common, sections=absences)
        measured = (
            one if one.host else msgspec.structs.replace(one, host=common)
            for one in (*self._sections, *self._series.sections)
        )
        return (*measured, self._joining(), runs, *([here] if here.sections else []))

    def _joining(self) -> Joining:
        name = next((one for one in LAUNCHED if os.environ.get(one, "").isdecimal()), "")
        return Joining(
            endpoint=f"{self._store.address}:{self._store.port}",
            limit=self._join_limit,
            world_size=self._me.world_size,
            ranks=(*map(self._came, self._ranks), *map(self._did_not_come, self._missing)),
            launched=int(os.environ[name]) if name else None,
            launched_by=name,
        )

    def _came(self, info: RankInfo) -> JoiningRank:
        state, joined = self._series.states.get(info.rank), self._series.joined
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
            joined=None if joined is None else info.rank in joined,
            last=state.last if state else "",
            age=state.age if state else None,
            status=state.status if state else "",
        )

    def _did_not_come(self, rank: int) -> JoiningRank:
        return next((one for one in self._found if one.rank == rank), JoiningRank(rank=rank))


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    name = "rank" if len(ranks) == 1 else "ranks"
    return f"{name} {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
