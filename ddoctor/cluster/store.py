"""Messages between the supervisors of the ranks, over a store and without collectives.

Rank 0 sends numbered orders, and every rank, including rank 0, carries them out. A rank's progress
replaces its earlier progress. No call waits for another rank, and none waits long for the store.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from _thread import start_new_thread
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import count
from threading import Event, Thread
from typing import Literal, TypeVar

import msgspec

from ddoctor.cluster.tcp_store import TcpStore, spoken
from ddoctor.cluster.torch_store import TorchStore, import_torch
from ddoctor.evidence import redaction

Label = TypeVar("Label")
Value = TypeVar("Value")

# The store answers in under a millisecond; a host that is down never answers.
ANSWER_SECONDS = 20.0
CONNECT_EVERY_SECONDS = 0.5
ATTEMPT_SECONDS = 5.0
NEAR_PORTS = 8

TICK_SECONDS = 0.1
# The store answers about 100,000 requests per second, and every rank asks at each tick.
RANKS_PER_TICK = 500
# The supervisor of a rank uses about 1 ms of a CPU per tick. Above 16 ranks per CPU, that and the
# start of so many processes (0.4 s each) leave the store too little of a CPU to answer in time.
RANKS_PER_CPU = 16
# A rank reports every change, and at least this often.
BEAT_SECONDS = 1.0
SILENT_SECONDS = 20.0
"""A rank that is silent for longer is stopped or dead. Swapping delays a message by seconds."""
ENDING_SILENT_SECONDS = 5.0
"""The same once a signal has asked for the end, because torchrun kills its ranks after 30 s."""
ENDING_TICKS = 3
"""Nor is a rank silent then that was asked for less than this many ticks."""

HEARTBEAT = "heartbeat"
"""Key of the counter that rank 0 increments while it runs."""
JOINED = "joined"
"""Key of the number of ranks that have joined."""
OPEN = "open"
"""Key that is set once rank 0 has opened the store."""
FINISHED = "finished"
"""Key of the number of ranks that have read the last order."""


Topic = Literal[
    "answer", "directive", "order", "progress", "rank", "record", "row", "section", "slots", "stop"
]


def key(topic: Topic, *parts: object) -> str:
    """The key of a message: its topic, then the number of its order, its rank, and so on."""
    return "/".join(map(str, (topic, *parts)))


class StoreLost(Exception):
    """The store does not answer."""


class RankInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The announcement of a rank that joins."""

    rank: int
    local_rank: int = 0
    local_size: int = 1
    world_size: int
    host: str = msgspec.field(default_factory=socket.gethostname)
    pid: int = msgspec.field(default_factory=os.getpid)
    version: str = msgspec.field(default_factory=lambda: version("ddoctor"))
    address: str
    """Address of the rank's host on the route to the store."""
    port: int = 0
    """Port on which the first rank of a host listens for test connections of other hosts."""
    visible_gpus: int = 0
    visible_devices: str | None = None
    gpus_in_use: str = ""
    """Why probes must not use the GPUs of this host; empty: they may."""
    unfit: str = ""
    """Why the probes cannot run on this rank; empty: they can."""

    @property
    def leads(self) -> bool:
        """Whether this is the first rank of its host."""
        return self.local_rank == 0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's order to every rank."""

    kind: Literal["collect", "find", "measure", "finish"]
    peers: tuple[RankInfo, ...] = ()
    """collect: the first ranks of all hosts, which listen for test connections."""
    missing: tuple[int, ...] = ()
    """find: the ranks whose processes to find."""
    probes: tuple[str, ...] = ()
    gpus_in_use: str = ""
    options: tuple[str, ...] = ()
    """measure: further options of the measuring processes."""
    environment: Mapping[str, str | None] = {}
    """measure: environment variables of the measuring processes; null: unset the variable."""
    hosts: tuple[str, ...] = ()
    """measure: hosts on which the environment changes; empty: all hosts."""
    code: int = 0
    """finish: the exit code of every rank except rank 0."""


class ProbeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one probe on one rank."""

    outcome: Literal["completed", "skipped"]
    reason: str
    seconds: float
    section: bool
    """Whether this rank has sent a section."""


class RankProgress(msgspec.Struct, kw_only=True):
    """The progress of a rank's measuring process."""

    rank: int
    host: str
    last: str = "starting"
    age: float = 0.0
    steps: int = 0
    pid: int = 0
    status: str = ""
    exit_code: int | None = None
    words: str = ""
    joined: bool = False
    began: dict[str, float] = {}
    """When each probe began, in seconds of its host's monotonic clock."""
    ended: dict[str, ProbeEnd] = {}
    over: bool = False
    """Whether the process has ended; then this is the final report."""
    survivors: tuple[int, ...] = ()
    """PIDs of processes that SIGKILL did not end."""


class MemoryStore:
    """In-memory substitute for a ``TcpStore``, for ranks that share one supervisor."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def exchange(self, key: str, value: str, keys: Sequence[str]) -> dict[str, str]:
        self.set(key, value)
        return self.get(keys)

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: self._values[key] for key in keys if key in self._values}

    def add(self, key: str, more: int) -> int:
        self._values[key] = str(int(self._values.get(key, "0")) + more)
        return int(self._values[key])


class ClusterStore:
    """The connection of one of ``ranks`` ranks to the store."""

    def __init__(
        self,
        store: TcpStore | TorchStore | MemoryStore,
        address: str,
        port: int = 0,
        *,
        prefix: str = "",
        ranks: int = 1,
        crowding: float = 1.0,
        server: TorchStore | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        # The store is open as long as this one.
        self._server = server
        self.address = address
        self.port = port
        self.crowding = crowding
        """Factor of all limits, because the ranks of this host share few CPUs."""
        self.tick = TICK_SECONDS * max(crowding, ranks / RANKS_PER_TICK)
        """Seconds between two requests of a rank."""
        self._orders = count()

    def set(self, key: str, value: object) -> None:
        """Store a value under a key; it replaces the earlier one."""
        text = redaction.encoded(value).decode()
        self._call(lambda: self._store.set(self._prefix + key, text))

    def give(self, order: msgspec.Struct) -> int:
        """Rank 0: give every rank this order; return its number."""
        number = next(self._orders)
        self.set(key("order", number), order)
        return number

    def get(self, key: str, kind: type[Value]) -> Value | None:
        """The value under a key; None: no rank has stored one yet."""
        return self.get_all({key: key}, kind).get(key)

    def get_all(self, keys: Mapping[Label, str], kind: type[Value]) -> dict[Label, Value]:
        """The values of these keys by their labels, without the keys that have none yet."""

        full = self._full(keys)
        return _decoded(full, self._call(lambda: self._store.get(list(full.values()))), kind)

    def exchange(
        self, key: str, value: object, keys: Mapping[Label, str], kind: type[Value]
    ) -> dict[Label, Value]:
        """Store a value under a key, and return those of other keys as ``get_all``."""
        name, text, full = self._prefix + key, redaction.encoded(value).decode(), self._full(keys)
        values = self._call(lambda: self._store.exchange(name, text, list(full.values())))
        return _decoded(full, values, kind)

    def _full(self, keys: Mapping[Label, str]) -> dict[Label, str]:
        return {label: self._prefix + key for label, key in keys.items()}

    def add(self, key: str, more: int = 1) -> int:
        """Add to a shared number, and return the sum."""
        return self._call(lambda: self._store.add(self._prefix + key, more))

    def wait_for(
        self, keys: Mapping[Label, str], kind: type[Value], *, seconds: float
    ) -> dict[Label, Value]:
        """Wait up to ``seconds`` for the values of these keys; return those that arrived."""
        deadline = time.monotonic() + seconds
        found = self.get_all(keys, kind)
        while len(found) < len(keys) and time.monotonic() < deadline:
            time.sleep(self.tick)
            missing = {label: key for label, key in keys.items() if label not in found}
            found |= self.get_all(missing, kind)
        return found

    def wait_until(self, key: str, number: int, *, seconds: float) -> None:
        """Wait until a shared number is reached, for at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.add(key, 0) < number and time.monotonic() < deadline:
            time.sleep(self.tick)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Rank 0: show the other ranks that this process runs."""
        over = Event()

        def beat() -> None:
            with suppress(StoreLost):
                self.add(HEARTBEAT)
                while not over.wait(BEAT_SECONDS):
                    self.add(HEARTBEAT)

        Thread(target=beat, name="heartbeat", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _call(self, call: Callable[[], Value]) -> Value:
        """Call the store in a thread, because a connection to a dead host blocks forever."""
        try:
            return _within(ANSWER_SECONDS * self.crowding, call)
        except Exception as error:
            store = f"the store at {self.address}:{self.port}"
            raise StoreLost(f"{store} does not answer: {_first_line(error)}") from error


def _decoded(
    keys: Mapping[Label, str], values: Mapping[str, str | bytes], kind: type[Value]
) -> dict[Label, Value]:
    decoder = msgspec.json.Decoder(kind)
    return {label: decoder.decode(values[key]) for label, key in keys.items() if key in values}


def compressed(value: object) -> str:
    """A large value as a short text."""
    return b64encode(zlib.compress(redaction.encoded(value), 1)).decode()


def decompressed(text: str, kind: type[Value]) -> Value:
    """The value from the text that ``compressed`` returned."""
    return msgspec.json.decode(zlib.decompress(b64decode(text)), type=kind)


def free_port() -> int:
    """A free port of this host."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def crowding(local_ranks: int) -> float:
    """Factor of all limits on a host with this number of ranks: 1 up to 16 ranks per CPU."""
    return max(1.0, local_ranks / (RANKS_PER_CPU * (os.cpu_count() or 1)))


def _never() -> bool:
    return False


def connect(
    address: str,
    port: int,
    *,
    host_it: bool,
    limit: float,
    prefix: str = "",
    ranks: int = 1,
    local_ranks: int = 1,
    useless: Callable[[], bool] = _never,
) -> ClusterStore:
    """Open the store (on the rank that hosts it), or connect to it within ``limit`` seconds.

    ``useless``: asked after each attempt; no further one is made once it is true.

    Raises:
        StoreLost: the store cannot be opened or reached; the message says why.
    """
    server = None
    if host_it:
        server = _server(address, port)
        port = server.port
    kind: Callable[[str, int, float], TcpStore | TorchStore] = TcpStore if spoken() else TorchStore
    deadline = time.monotonic() + limit
    while True:
        left = deadline - time.monotonic()
        patience = max(1.0, left)
        try:
            store = _opened(kind, address, port, patience)
        except (RuntimeError, ValueError, OSError) as error:
            if left < CONNECT_EVERY_SECONDS or useless():
                raise _unreachable(address, port, error) from error
            time.sleep(CONNECT_EVERY_SECONDS)
        else:
            return ClusterStore(
                store,
                address,
                port,
                prefix=f"ddoctor/{prefix}/",
                ranks=ranks,
                crowding=crowding(local_ranks),
                server=server,
            )


def _server(address: str, port: int) -> TorchStore:
    try:
        return _opened(partial(TorchStore, host_it=True), address, port, ATTEMPT_SECONDS)
    except (RuntimeError, ValueError, OSError) as error:
        raise _unreachable(address, port, error) from error


def _opened(
    kind: Callable[[str, int, float], Value], address: str, port: int, seconds: float
) -> Value:
    if kind is not TcpStore:
        import_torch()
    # If another program has the port, torch waits forever for its answer.
    return _within(seconds + ATTEMPT_SECONDS, lambda: kind(address, port, seconds))


def _unreachable(address: str, port: int, error: Exception) -> StoreLost:
    return StoreLost(f"cannot reach the store at {address}:{port}: {_first_line(error)}")


def connect_near(
    address: str,
    port: int,
    *,
    host_it: bool,
    limit: float,
    prefix: str,
    ranks: int,
    local_ranks: int,
    useless: Callable[[], bool],
) -> ClusterStore:
    """Open the store at the first free one of the ports from ``port`` on, or find it there.

    ``useless``: as of ``connect``.

    Raises:
        StoreLost: as ``connect``; after all ports.
    """
    if host_it:
        try:
            import_torch()
        except OSError as error:
            raise StoreLost(str(error)) from error
    ports = range(port, port + NEAR_PORTS)
    # Of two runs that share the ports, each finds its own store.
    prefix = f"{prefix}/{port}"
    deadline = time.monotonic() + limit
    while True:
        for one in ports:
            with suppress(OSError, StoreLost):
                store = connect(
                    address,
                    one,
                    host_it=host_it,
                    limit=0.0,
                    prefix=prefix,
                    ranks=ranks,
                    local_ranks=local_ranks,
                )
                if host_it:
                    store.set(OPEN, True)
                if store.get(OPEN, bool):
                    return store
        if host_it or time.monotonic() > deadline or useless():
            whose = "no port is free for the store" if host_it else "rank 0 has opened no store"
            raise StoreLost(f"{whose} at {address}:{ports[0]} to {ports[-1]}")
        time.sleep(CONNECT_EVERY_SECONDS)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _within(seconds: float, call: Callable[[], Value]) -> Value:
    """Return the result of a call in a thread, which is abandoned after ``seconds``.

    Raises:
        TimeoutError: the call did not return; its other exceptions are raised unchanged.
    """
    outcome: Future[Value] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    # Without memory for a new thread, Thread.start waits forever for its begin.
    start_new_thread(run, ())
    if not wait([outcome], seconds).done:
        raise TimeoutError(f"{seconds:.0f} s of silence")
    return outcome.result()
