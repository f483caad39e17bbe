"""What the ranks report to rank 0, and what rank 0 wants of them, over the store.

A rank, or the relay of its host, writes into a slot of its turn, and reads one reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec

from ddoctor.cluster.launcher_environment import LaunchedRank
from ddoctor.cluster.store import HEARTBEAT, TICK_SECONDS, ClusterStore, key
from ddoctor.training.messages import Directive, Now, Reply

SECONDS_PER_HOST = 1.25e-3
"""Part of a tick for each host. A report of 8 ranks takes rank 0's host some 40 µs of a CPU, which
is 3 to 4 % of it (`benchmarks/whole_run_scale.py`)."""


def host_tick(store: ClusterStore, launched: LaunchedRank) -> float:
    """Seconds between two reports of a host, and between two looks of rank 0 at all of them."""
    hosts = ceil(launched.world_size / launched.local_size)
    return max(TICK_SECONDS * store.crowding, SECONDS_PER_HOST * hosts)


KIND: Any = int | Directive
"""What a field of a reply is; they are keys of the store."""


def reply(store: ClusterStore, turn: int) -> Reply:
    """Read what rank 0 has to say."""
    return Reply(**store.get_all(_keys(turn), KIND))


def _keys(turn: int) -> dict[str, str]:
    return {"beat": HEARTBEAT, "directive": key("directive", turn)}


class Slot:
    """A place in the store for the reports of one supervisor."""

    def __init__(self, store: ClusterStore, turn: int) -> None:
        self._store, self._turn = store, turn
        self._key = key("progress", turn, store.add(key("slots", turn)) - 1)

    def exchange(self, nows: Mapping[int, Now]) -> Reply:
        """Report the states of these ranks; return what rank 0 has to say."""
        return Reply(**self._store.exchange(self._key, nows, _keys(self._turn), KIND))


class Followers:
    """On rank 0: the other ranks of a turn."""

    def __init__(self, store: ClusterStore, turn: int, tick: float, channel: str = "") -> None:
        """``tick``: seconds between two looks. ``channel``: where the ranks of a host meet."""
        self.store, self.turn, self.tick = store, turn, tick
        self._directive = Directive(channel=channel)
        self.want()

    def want(self, **changes: object) -> None:
        """Change what is wanted of them, by the fields of ``Directive``."""
        self._directive = msgspec.structs.replace(self._directive, **changes)
        self.store.set(key("directive", self.turn), self._directive)

    def states(self) -> dict[int, Now]:
        """The last state of each rank that has reported."""
        slots = self.store.add(key("slots", self.turn), 0)
        keys = {number: key("progress", self.turn, number) for number in range(slots)}
        found: dict[int, Now] = {}
        # A rank whose relay is gone takes a new slot, so the last slot that has it is right.
        for nows in self.store.get_all(keys, dict[int, Now]).values():
            found |= nows
        return found
