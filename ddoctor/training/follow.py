"""Every rank except rank 0: watch the script of this rank, and obey rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddoctor.cluster.store import FINISHED, ClusterStore, compressed, tick_seconds
from ddoctor.cluster.supervisor import CoordinatorHeartbeat
from ddoctor.training.child import Child
from ddoctor.training.messages import (
    Stop,
    TurnOrder,
    end_key,
    now_key,
    record_key,
    stop_key,
    turn_key,
)

# Each sample takes about a millisecond, which must not slow the steps.
TICK_SECONDS = 0.5

NewChild = Callable[[int, TurnOrder], Child]


def pause(ranks: int) -> float:
    """Seconds between two samples."""
    return max(TICK_SECONDS, tick_seconds(ranks))


def follow(store: ClusterStore, child: Child, new_child: NewChild) -> int | None:
    """Run turns until rank 0 ends the run; return the script's exit code of the first turn.

    Raises:
        CoordinatorLost: rank 0 no longer answers.
        StoreLost: the store no longer answers.
    """
    rank, first_code = child.launched.rank, None
    coordinator = CoordinatorHeartbeat(store)
    turn = 0
    while True:
        _watch(store, child, turn, coordinator)
        record = child.record()
        store.set(record_key(turn, rank), compressed(record))
        if turn == 0:
            first_code = 1 if record.ended_by_us else record.exit_code
        turn += 1
        while (order := store.get(turn_key(turn), TurnOrder)) is None:
            coordinator.check()
            time.sleep(TICK_SECONDS)
        if order.over:
            store.add(FINISHED)
            return first_code
        child = new_child(turn, order)


def _watch(store: ClusterStore, child: Child, turn: int, coordinator: CoordinatorHeartbeat) -> None:
    key, wait = now_key(turn, child.launched.rank), pause(child.launched.world_size)
    stopping = False
    while not child.over:
        store.set(key, child.now())
        coordinator.check()
        if (stop := store.get(stop_key(turn), Stop)) is not None:
            child.stop_at(stop.at)
            if not stopping:
                child.use.measure_worker()
            stopping = True
            child.use.read_counters()
        child.sample()
        if store.get(end_key(turn), bool):
            child.end(sample=True)
        elif child.overdue:
            child.end(sample=False)
        child.wait(wait)
    store.set(key, child.now())
