"""A rank's way to rank 0: through the relay of its host, or by itself."""

from __future__ import annotations

import msgspec

from ddoctor.cluster.launcher_environment import LaunchedRank
from ddoctor.cluster.store import ClusterStore
from ddoctor.training.messages import Now, Reply
from ddoctor.training.relay import Member, Relay, meet
from ddoctor.training.reporting import Slot, host_tick, reply


class Direct:
    """A rank that reports by itself."""

    def __init__(self, store: ClusterStore, turn: int, rank: int, tick: float) -> None:
        """``tick``: seconds between two reports."""
        self.tick = tick
        self._rank, self._slot = rank, Slot(store, turn)

    def exchange(self, now: Now) -> Reply:
        """Report the state of the rank; return what rank 0 has to say.

        Raises:
            StoreLost: the store does not answer.
        """
        return self._slot.exchange({self._rank: now})


class Line:
    """The way in a run that is followed to its end."""

    def __init__(self, store: ClusterStore, turn: int, launched: LaunchedRank) -> None:
        self._store, self._turn, self._launched = store, turn, launched
        self._way: Direct | Member | Relay | None = None

    @property
    def tick(self) -> float:
        """Seconds between two reports."""
        return self._way.tick if self._way is not None else self._store.tick

    def exchange(self, now: Now) -> Reply:
        """As ``Direct.exchange``; before rank 0 has started, it reports only the end."""
        if self._way is None:
            last = reply(self._store, self._turn)
            if not last.directive.channel and not now.over:
                return last
            self._way = self._met(last) or self._direct()
        if isinstance(self._way, Member):
            try:
                return self._way.exchange(now)
            except (OSError, msgspec.DecodeError):
                self._way.close()
                self._way = self._direct()
        return self._way.exchange(now)

    def _met(self, last: Reply) -> Member | Relay | None:
        if self._launched.local_size == 1 or not last.directive.channel:
            return None
        return meet(self._store, self._turn, self._launched, last)

    def _direct(self) -> Direct:
        # Where no rank of any host has a relay, all ask the store.
        tick = max(self._store.tick, host_tick(self._store, self._launched))
        return Direct(self._store, self._turn, self._launched.rank, tick)
