"""The ranks of a host report through one of them, so that rank 0 reads one report per host.

The first rank that takes the name of the channel, an abstract Unix socket, is the relay, and the
others connect to it. The kernel frees the name with the process, and no file is needed. A rank
whose relay is gone, or does not answer, reports by itself.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from contextlib import suppress
from threading import Thread
from weakref import finalize

import msgspec

from ddoctor.cluster.launcher_environment import LaunchedRank
from ddoctor.cluster.store import TICK_SECONDS, ClusterStore, StoreLost
from ddoctor.evidence import redaction
from ddoctor.training.messages import UNRECORDED, Now, Reply
from ddoctor.training.reporting import Slot, host_tick

# The relay answers without asking the store. Rank 0 gives up a rank after 20 s.
ANSWER_SECONDS = 5.0
# A rank that has taken the name, and does not listen yet, refuses connections.
ATTEMPTS = 20
ATTEMPT_SECONDS = 0.05
MOST_WAITING = 1024
MOST_BYTES = 65536


def meet(
    store: ClusterStore, turn: int, launched: LaunchedRank, last: Reply
) -> Member | Relay | None:
    """Connect to the relay of this host, or become it; None: neither is possible.

    ``last``: what rank 0 has said so far.
    """
    name = f"\0ddoctor/{last.directive.channel}"
    # Only Linux has abstract names. A user may have no thread or descriptor left.
    with suppress(OSError, RuntimeError):
        for _ in range(ATTEMPTS):
            listener = _socket()
            try:
                listener.bind(name)
                listener.listen(MOST_WAITING)
            except OSError:
                listener.close()
            else:
                return Relay(listener, store, turn, launched, last)
            with suppress(ConnectionRefusedError):
                return Member(name, launched.rank, TICK_SECONDS * store.crowding)
            time.sleep(ATTEMPT_SECONDS)
    return None


class Member:
    """A rank that reports to the relay of its host."""

    def __init__(self, name: str, rank: int, tick: float) -> None:
        """Connect.

        Raises:
            OSError: no process of this user is the relay.
        """
        self.tick, self._rank = tick, rank
        self._relay = _socket()
        finalize(self, self._relay.close)
        self._relay.settimeout(ANSWER_SECONDS)
        self._relay.connect(name)
        if not _of_this_user(self._relay):
            raise PermissionError

    def exchange(self, now: Now) -> Reply:
        """Report the state of the rank; return what rank 0 said last.

        Raises:
            OSError, DecodeError: the relay does not answer.
        """
        self._relay.sendall(redaction.encoded({self._rank: now}))
        return msgspec.json.decode(self._relay.recv(MOST_BYTES), type=Reply)

    def close(self) -> None:
        """Leave the relay."""
        self._relay.close()


class Relay:
    """A rank that reports for all ranks of its host that are connected.

    Its threads run until the process ends: the rank itself takes seconds for its own record.
    """

    def __init__(
        self,
        listener: socket.socket,
        store: ClusterStore,
        turn: int,
        launched: LaunchedRank,
        last: Reply,
    ) -> None:
        """Begin; ``last``: what rank 0 has said so far."""
        self.tick = TICK_SECONDS * store.crowding
        self._listener, self._rank, self._reply = listener, launched.rank, last
        self._slot, self._period = Slot(store, turn), host_tick(store, launched)
        self._nows: dict[int, Now] = {}
        self._ranks: dict[socket.socket, int] = {}
        self._lost: StoreLost | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        for task in (self._report, self._serve):
            Thread(target=task, name="relay", daemon=True).start()

    def exchange(self, now: Now) -> Reply:
        """Report the state of the rank with the next report; return what rank 0 said last.

        Raises:
            StoreLost: the store does not answer.
        """
        if self._lost is not None:
            raise self._lost
        self._nows[self._rank] = now
        return self._reply

    def _report(self) -> None:
        try:
            while self._reply.directive.stop != UNRECORDED:
                self._reply = self._slot.exchange(dict(self._nows))
                # All hosts at the same moments, by their clocks: while the store is awake, a report
                # costs it a fifth of one that wakes it.
                time.sleep(self._period - time.time() % self._period)
        except StoreLost as error:
            # The others find out by themselves whether it is lost to them, too.
            self._lost = error

    def _serve(self) -> None:
        while self._lost is None:
            for ready, _ in self._selector.select(self.tick):
                if ready.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(ready.fileobj, socket.socket)
                    self._answer(ready.fileobj)
        for one in [*self._selector.get_map().values()]:
            assert isinstance(one.fileobj, socket.socket)
            one.fileobj.close()
        self._selector.close()

    def _accept(self) -> None:
        with suppress(OSError):
            member, _ = self._listener.accept()
            member.setblocking(False)
            if _of_this_user(member):
                self._selector.register(member, selectors.EVENT_READ)
            else:
                member.close()

    def _answer(self, member: socket.socket) -> None:
        try:
            ((rank, now),) = msgspec.json.decode(
                member.recv(MOST_BYTES), type=dict[int, Now]
            ).items()
            member.sendall(redaction.encoded(self._reply))
        except (OSError, ValueError):
            self._leave(member)
        else:
            self._ranks[member], self._nows[rank] = rank, now

    def _leave(self, member: socket.socket) -> None:
        """Forget the state of a rank that now reports by itself; an end remains true."""
        self._selector.unregister(member)
        member.close()
        rank = self._ranks.pop(member, self._rank)
        if rank != self._rank and not self._nows[rank].over:
            del self._nows[rank]


def _socket() -> socket.socket:
    # One message is one record, and the end of the other process ends the connection.
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _of_this_user(other: socket.socket) -> bool:
    """Whether the other end is a process of this user: abstract names have no permissions."""
    form = struct.Struct("3i")
    packed = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return bool(form.unpack(packed)[1] == os.getuid())
