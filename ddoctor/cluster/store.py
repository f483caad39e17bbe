"""Messages between the supervisors of the ranks, over a store and without collectives.

Rank 0 sends numbered orders, and every rank, including rank 0, carries them out. A rank's progress
replaces its earlier progress. No call waits for another rank, and none waits long for the store.
"""

from __future__ import annotations

import socket
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Value = TypeVar("Value")

# The store answers in under a millisecond; a host that is down never answers.
ANSWER_SECONDS = 20.0
CONNECT_EVERY_SECONDS = 0.5
ATTEMPT_SECONDS = 5.0

TICK_SECONDS = 0.1
# The store answers about 100,000 requests per second, and every rank asks at each tick.
RANKS_PER_TICK = 500
# A rank reports every change, and at least this often.
BEAT_SECONDS = 1.0


HEARTBEAT = "heartbeat"
"""Key of the counter that rank 0 increments while it runs."""
JOINED = "joined"
"""Key of the number of ranks that have joined."""
FINISHED = "finished"
"""Key of the number of ranks that have read the last order."""


def tick_seconds(ranks: int) -> float:
    """Seconds between two requests of a rank; the more ranks, the less often each one asks."""
    return TICK_SECONDS * max(1.0, ranks / RANKS_PER_TICK)


def rank_key(ticket: int) -> str:
    return f"rank/{ticket}"


def order_key(number: int) -> str:
    return f"order/{number}"


def stop_key(number: int) -> str:
    return f"stop/{number}"


def progress_key(number: int, rank: int) -> str:
    return f"progress/{number}/{rank}"


def section_key(number: int, rank: int, probe: str) -> str:
    return f"section/{number}/{rank}/{probe}"


def host_key(rank: int) -> str:
    return f"host/{rank}"


def found_key(rank: int) -> str:
    return f"found/{rank}"


class StoreLost(Exception):
    """The store does not answer."""


class RankInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The announcement of a rank that joins."""

    rank: int
    local_rank: int
    local_size: int
    world_size: int
    host: str
    pid: int
    version: str
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


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a rank's measuring process."""

    beat: int
    pid: int
    doing: str
    age: float
    steps: int
    joined: bool
    began: tuple[str, ...] = ()
    ended: Mapping[str, ProbeEnd] = {}
    over: bool = False
    """Whether the process has ended; then this is the final report."""
    status: str = ""
    exit_code: int | None = None
    error: str = ""
    survivors: tuple[int, ...] = ()
    """PIDs of processes that SIGKILL did not end."""


class FoundProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a rank that never joined, as found on its host."""

    rank: int
    host: str
    pid: int = 0
    status: str = ""
    age: float | None = None


class MemoryStore:
    """In-memory substitute for torch's stores, for ranks that share one supervisor."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def check(self, keys: list[str]) -> bool:
        return self._values.keys() >= set(keys)

    def multi_get(self, keys: list[str]) -> list[str]:
        return [self._values[key] for key in keys]

    def add(self, key: str, more: int) -> int:
        self._values[key] = str(int(self._values.get(key, "0")) + more)
        return int(self._values[key])


class ClusterStore:
    """The connection of one rank to the store."""

    def __init__(self, store: Store | MemoryStore, address: str, port: int) -> None:
        self._store = store
        self.address = address
        self.port = port

    def set(self, key: str, value: object) -> None:
        """Store a value under a key; it replaces the earlier one."""
        self._call(lambda: self._store.set(key, msgspec.json.encode(value).decode()))

    def get(self, key: str, kind: type[Value]) -> Value | None:
        """The value under a key; None: no rank has stored one yet."""
        return self.get_all([key], kind).get(key)

    def get_all(self, keys: Iterable[str], kind: type[Value]) -> dict[str, Value]:
        """The values of these keys, without the keys that have none yet."""

        def call() -> dict[str, Any]:
            wanted = list(keys)
            if not wanted or not self._store.check(wanted):
                wanted = [key for key in wanted if self._store.check([key])]
            values = self._store.multi_get(wanted) if wanted else []
            return dict(zip(wanted, values, strict=True))

        decoder = msgspec.json.Decoder(kind)
        return {key: decoder.decode(value) for key, value in self._call(call).items()}

    def add(self, key: str, more: int = 1) -> int:
        """Add to a shared number, and return the sum."""
        return int(self._call(lambda: self._store.add(key, more)))

    def wait_for(
        self, keys: Iterable[str], kind: type[Value], *, seconds: float, tick: float = TICK_SECONDS
    ) -> dict[str, Value]:
        """Wait up to ``seconds`` for the values of these keys; return those that arrived."""
        wanted = set(keys)
        deadline = time.monotonic() + seconds
        while (
            len(found := self.get_all(wanted, kind)) < len(wanted) and time.monotonic() < deadline
        ):
            self.add(HEARTBEAT)
            time.sleep(tick)
        return found

    def wait_until(
        self, key: str, number: int, *, seconds: float, tick: float = TICK_SECONDS
    ) -> None:
        """Wait until a shared number is reached, for at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.add(key, 0) < number and time.monotonic() < deadline:
            time.sleep(tick)

    def _call(self, call: Callable[[], Any]) -> Any:
        """Call the store in a thread, because a connection to a dead host blocks forever."""
        try:
            return _within(ANSWER_SECONDS, call)
        except Exception as error:
            lines = str(error).strip().splitlines()
            why = lines[0] if lines else type(error).__name__
            store = f"the store at {self.address}:{self.port}"
            raise StoreLost(f"{store} does not answer: {why}") from error


def compressed(value: object) -> str:
    """A large value as a short text."""
    return b64encode(zlib.compress(msgspec.json.encode(value), 1)).decode()


def decompressed(text: str, kind: type[Value]) -> Value:
    """The value from the text that ``compressed`` returned."""
    return msgspec.json.decode(zlib.decompress(b64decode(text)), type=kind)


def free_port() -> int:
    """A free port of this host."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def connect(
    address: str, port: int, *, host_it: bool, limit: float, prefix: str = ""
) -> ClusterStore:
    """Open the store (on the rank that hosts it), or connect to it within ``limit`` seconds.

    Raises:
        StoreLost: the store cannot be opened or reached; the message says why.
    """
    # torch has it there, but its type stubs do not.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.distributed_c10d import PrefixStore

    deadline = time.monotonic() + limit
    while True:
        left = deadline - time.monotonic()
        patience = max(1.0, min(ATTEMPT_SECONDS, left))

        def attempt(patience: float = patience) -> Store:
            timeout = timedelta(seconds=patience)
            return TCPStore(address, port, None, host_it, timeout, wait_for_workers=False)

        try:
            # If another program has the port, torch waits forever for its answer.
            store: Any = _within(patience + ATTEMPT_SECONDS, attempt)
        except (RuntimeError, ValueError, OSError) as error:
            if host_it or left < CONNECT_EVERY_SECONDS:
                lines = str(error).strip().splitlines()
                why = lines[0] if lines else type(error).__name__
                raise StoreLost(f"cannot reach the store at {address}:{port}: {why}") from error
            time.sleep(CONNECT_EVERY_SECONDS)
        else:
            return ClusterStore(PrefixStore(f"ddoctor/{prefix}", store), address, store.port)


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread, which is abandoned after ``seconds``.

    Raises:
        TimeoutError: the call did not return; its other exceptions are raised unchanged.
    """
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"{seconds:.0f} s of silence")
    return results[0]
