"""A rank's supervisor: carries out rank 0's orders and measures nothing itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from ddoctor.cluster.measuring import Measuring
from ddoctor.cluster.reachability import attempts
from ddoctor.cluster.store import (
    BEAT_SECONDS,
    ENDING_SILENT_SECONDS,
    ENDING_TICKS,
    FINISHED,
    HEARTBEAT,
    SILENT_SECONDS,
    ClusterStore,
    Order,
    RankInfo,
    compressed,
    decompressed,
    key,
)
from ddoctor.collect import collect, with_absent
from ddoctor.evidence.bundle import any_section
from ddoctor.evidence.joining import JoiningRank, Reach
from ddoctor.evidence.redaction import redact
from ddoctor.evidence.section import Absent, Section, Unseen
from ddoctor.proc import processes

AnyOrder = TypeVar("AnyOrder", bound=msgspec.Struct)

# The sections of all hosts must fit rank 0's store; one host's sections take some 100 kB.
MOST_BYTES = 4 * 2**20


class CoordinatorLost(Exception):
    """Rank 0, which writes the report, no longer answers."""


def serve(store: ClusterStore, me: RankInfo, data: Path, join_limit: float) -> int:
    """Carry out rank 0's orders; return the exit code of the last one.

    ``join_limit``: seconds to wait for rank 0's first heartbeat.

    Raises:
        CoordinatorLost: rank 0 no longer answers.
        StoreLost: the store no longer answers.
    """
    coordinator = CoordinatorHeartbeat(store, join_limit)
    for number, order in orders(store, Order, coordinator):
        if order.kind == "finish":
            store.add(FINISHED)
            return order.code
        if order.kind == "measure":
            with Measuring(store, [me], number, order, data) as measuring:
                while not measuring.over:
                    measuring.tick()
                    coordinator.check()
                    if store.get(key("stop", number), bool):
                        measuring.end()
                    time.sleep(store.tick)
        elif me.leads:
            store.set(key("answer", number, me.rank), answer(order, me))
    raise AssertionError("the orders never end")


def orders(
    store: ClusterStore, kind: type[AnyOrder], coordinator: CoordinatorHeartbeat, first: int = 0
) -> Iterator[tuple[int, AnyOrder]]:
    """Rank 0's orders with their numbers, as they come.

    Raises:
        CoordinatorLost: rank 0 no longer answers.
        StoreLost: the store no longer answers.
    """
    for number in count(first):
        while (order := store.get(key("order", number), kind)) is None:
            coordinator.check()
            time.sleep(store.tick)
        yield number, order


class CoordinatorHeartbeat:
    """Watches the counter that rank 0 increments while it runs."""

    def __init__(self, store: ClusterStore, join_limit: float) -> None:
        self._store, self._join_limit = store, join_limit
        self.ending = False
        """Whether a signal has asked this rank to end."""
        self._count = 0
        self._heard = self._asked = time.monotonic()

    def check(self) -> None:
        """Read the counter, at most once a second; raise CoordinatorLost if it stays the same."""
        now = time.monotonic()
        if now - self._asked < BEAT_SECONDS:
            return
        self._asked = now
        self.heard(self._store.add(HEARTBEAT, 0))

    def heard(self, counted: int) -> None:
        """Take the counter as it was just read; raise CoordinatorLost if it stays the same."""
        now = time.monotonic()
        limit = (SILENT_SECONDS if counted else self._join_limit) * self._store.crowding
        if self.ending:
            limit = max(ENDING_SILENT_SECONDS, ENDING_TICKS * self._store.tick)
        if counted != self._count:
            self._count, self._heard = counted, now
        elif now - self._heard > limit:
            raise CoordinatorLost(
                f"rank 0, which writes the report, has not answered for "
                f"{limit:.0f} s: check whether its process is stopped or dead"
            )


def answer(order: Order, me: RankInfo) -> Any:
    """The answer of this host: its packed sections, or the processes of ranks that never joined."""
    if order.kind == "find":
        return find_processes(order.missing, me.host)
    reach = Reach(attempts=attempts(me, order.peers))
    return pack(with_absent([reach, *collect(lambda label: None)]), me.host)


def pack(sections: Sequence[Section], host: str) -> str:
    """The sections of a host as a compressed text; the largest are dropped if it is too long."""
    # What this host's environment calls secret, rank 0's does not know.
    placed = [redact(msgspec.structs.replace(section, host=host)) for section in sections]
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
    kind: Any = any_section()
    return decompressed(packed, tuple[kind, ...])


def find_processes(ranks: Sequence[int], host: str) -> tuple[JoiningRank, ...]:
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
                    JoiningRank(
                        rank=rank,
                        host=host,
                        pid=process.pid,
                        last="starting",
                        age=age,
                        status=status,
                    )
                )
                break
    return tuple(found)
