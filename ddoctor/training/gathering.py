"""Rank 0 asks all ranks for what they have recorded so far, while the script runs."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from time import perf_counter

from ddoctor.cluster.store import ClusterStore, StoreLost, compressed, decompressed, key
from ddoctor.training.child import Child
from ddoctor.training.messages import Record, Window
from ddoctor.training.reporting import Followers

ANSWER_SECONDS = 20.0
"""A rank answers within a tick; with its stack and its host, it takes up to 20 s."""


class Answers:
    """On every rank except rank 0: answers each window once."""

    def __init__(self, store: ClusterStore, turn: int, child: Child) -> None:
        self._store, self._turn, self._child = store, turn, child
        self._done = 0
        self._thread: Thread | None = None

    def look(self, window: Window | None) -> None:
        """Answer the last window, if there is a new one."""
        if window is None or window.number <= self._done:
            return
        self.finish()
        self._done = window.number
        # It may take as long as the silence after which a rank counts as lost.
        self._thread = Thread(target=self._answer, args=(window,), daemon=True)
        with suppress(RuntimeError):  # the user has as many threads as allowed
            self._thread.start()

    def finish(self) -> None:
        """Wait for an answer that is under way."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(ANSWER_SECONDS)

    def _answer(self, window: Window) -> None:
        record = self._child.so_far(window.first, stack=window.stack)
        rank = self._child.launched.rank
        with suppress(StoreLost):
            self._store.set(key("row", self._turn, window.number, rank), compressed(record))


class Gathering:
    """On rank 0: one question at a time."""

    def __init__(self, followers: Followers, child: Child) -> None:
        self._followers, self._child = followers, child
        self._window: Window | None = None
        self._own: Record | None = None
        self._asked = 0.0
        self._number = 0

    @property
    def asking(self) -> bool:
        """Whether a question is open."""
        return self._window is not None

    def ask(self, first: int, *, stack: bool = False) -> None:
        """Ask all ranks for their rows from a step on."""
        self._number += 1
        self._window = Window(number=self._number, first=first, stack=stack)
        self._asked = perf_counter()
        self._followers.want(window=self._window)
        self._own = self._child.so_far(first, stack=stack)

    def answers(self) -> list[Record] | None:
        """The records of the ranks that answered, by rank; None: wait longer."""
        assert self._window is not None
        assert self._own is not None
        size = self._child.launched.world_size
        store, turn = self._followers.store, self._followers.turn
        keys = {rank: key("row", turn, self._number, rank) for rank in range(1, size)}
        texts = store.get_all(keys, str)
        late = perf_counter() - self._asked > ANSWER_SECONDS * store.crowding
        if len(texts) < len(keys) and not late:
            return None
        self._window = None
        return [self._own, *(decompressed(texts[rank], Record) for rank in sorted(texts))]
