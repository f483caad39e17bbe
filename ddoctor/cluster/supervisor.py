"""A rank's supervisor: carries out rank 0's orders and measures nothing itself."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from itertools import count
from operator import or_
from pathlib import Path
from typing import Any

import msgspec
import psutil

from ddoctor.cluster.measuring import Measuring
from ddoctor.cluster.reachability import attempts
from ddoctor.cluster.store import (
    BEAT_SECONDS,
    FINISHED,
    HEARTBEAT,
    ClusterStore,
    FoundProcess,
    Order,
    RankInfo,
    compressed,
    decompressed,
    found_key,
    host_key,
    order_key,
    stop_key,
    tick_seconds,
)
from ddoctor.collect import collect
from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.joining import Reach
from ddoctor.evidence.section import Absence, Absent, Section, Unseen
from ddoctor.proc import processes

# Rank 0 sends no heartbeat while its collectors run; their limit is shorter than this.
COORDINATOR_SILENCE_SECONDS = 60.0

# The sections of all hosts must fit rank 0's store; one host's sections take some 100 kB.
MOST_BYTES = 4 * 2**20


class CoordinatorLost(Exception):
    """Rank 0, which writes the report, no longer answers."""


def serve(store: ClusterStore, me: RankInfo, data: Path) -> int:
    """Carry out rank 0's orders; return the exit code of the last one.

    Raises:
        CoordinatorLost: rank 0 no longer answers.
        StoreLost: the store no longer answers.
    """
    coordinator = CoordinatorHeartbeat(store)
    tick = tick_seconds(me.world_size)
    for number in count():
        while (order := store.get(order_key(number), Order)) is None:
            coordinator.check()
            time.sleep(tick)
        if order.kind == "finish":
            store.add(FINISHED)
            return order.code
        if order.kind == "collect" and me.leads:
            store.set(host_key(me.rank), collect_host(order.peers, me))
        if order.kind == "find" and me.leads:
            store.set(found_key(me.rank), find_processes(order.missing, me.host))
        if order.kind == "measure":
            with Measuring(store, [me], number, order, data) as measuring:
                while not measuring.over:
                    measuring.tick()
                    coordinator.check()
                    if store.get(stop_key(number), bool):
                        measuring.end()
                    time.sleep(tick)
    raise AssertionError("the orders never end")


class CoordinatorHeartbeat:
    """Watches the counter that rank 0 increments while it runs."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._count = -1
        self._heard = self._asked = time.monotonic()

    def check(self) -> None:
        """Read the counter, at most once a second; raise CoordinatorLost if it stays the same."""
        now = time.monotonic()
        if now - self._asked < BEAT_SECONDS:
            return
        self._asked = now
        counted = self._store.add(HEARTBEAT, 0)
        if counted != self._count:
            self._count, self._heard = counted, now
        elif now - self._heard > COORDINATOR_SILENCE_SECONDS:
            raise CoordinatorLost(
                f"rank 0, which writes the report, has not answered for "
                f"{COORDINATOR_SILENCE_SECONDS:.0f} s: check whether its process is stopped or dead"
            )


def collect_host(peers: Sequence[RankInfo], me: RankInfo) -> str:
    """All sections of this host, packed by ``pack``."""
    sections: list[Section] = [Reach(attempts=attempts(me, peers))]
    absences: list[Absence] = []
    for outcome in collect(lambda label: None):
        if isinstance(outcome, Section):
            sections.append(outcome)
        else:
            absences.append(outcome)
    return pack([*sections, Absent(sections=tuple(absences))], me.host)


def pack(sections: Sequence[Section], host: str) -> str:
    """The sections of a host as a compressed text; the largest are dropped if it is too long."""
    placed = [msgspec.structs.replace(section, host=host) for section in sections]
    packed = compressed(placed)
    while len(packed) > MOST_BYTES:
        largest = max(placed, key=lambda section: len(msgspec.json.encode(section)))
        why = Unseen(what=largest.label(), why="too large to send to rank 0")
        placed = [
            msgspec.structs.replace(one, unseen=(*one.unseen, why))
            if isinstance(one, Absent)
            else one
            for one in placed
            if one is not largest
        ]
        packed = compressed(placed)
    return packed


def unpack(packed: str) -> tuple[Section, ...]:
    """The sections that ``pack`` packed."""
    kinds: Any = reduce(or_, section_types())
    return decompressed(packed, tuple[kinds, ...])


def find_processes(ranks: Sequence[int], host: str) -> tuple[FoundProcess, ...]:
    """The processes on this host of ranks that never joined."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return ()
    found = []
    for rank in ranks:
        for process in processes.carrying(RANK=str(rank), TORCHELASTIC_RUN_ID=run):
            with suppress(psutil.Error):
                age = time.time() - process.create_time()
                status = processes.statuses([process.pid])[process.pid]
                found.append(
                    FoundProcess(rank=rank, host=host, pid=process.pid, status=status, age=age)
                )
                break
    return tuple(found)
