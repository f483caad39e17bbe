"""Messages between the supervisors of the ranks: over a store, never by a collective.

Rank 0 gives numbered orders, and every rank, rank 0 included, carries them out. The progress of a
rank replaces its earlier one. No call waits for another rank, and none waits long for the store.
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

# The store answers in under a millisecond; a host that has gone answers never.
ANSWER_SECONDS = 20.0
CONNECT_EVERY_SECONDS = 0.5
ATTEMPT_SECONDS = 5.0

TICK_SECONDS = 0.1
# The store answers about 100,000 questions a second, and every rank asks at each tick.
RANKS_PER_TICK = 500
# A rank reports when something is new, and at least this often.
BEAT_SECONDS = 1.0


HEARTBEAT = "heartbeat"
"""The number that rank 0 counts up while it runs."""
JOINED = "joined"
"""How many ranks have joined."""
FINISHED = "finished"
"""How many ranks have read the last order."""


def tick_seconds(ranks: int) -> float:
    """How long a rank sleeps before it asks again: of many ranks each asks less often."""
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
    """The store does not answer, or no longer."""


class RankInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as it announces itself when it joins."""

    rank: int
    local_rank: int
    local_size: int
    world_size: int
    host: str
    pid: int
    version: str
    address: str
    """Its address on the route to the store."""
    port: int = 0
    """Where the first rank of a host listens, so that others can try to connect."""
    visible_gpus: int = 0
    visible_devices: str | None = None
    gpus_in_use: str = ""
    """Why the GPUs of this host must not be touched."""
    unfit: str = ""
    """Why the probes cannot run there at all."""

    @property
    def leads(self) -> bool:
        """Whether it is the first rank of its host."""
        return self.local_rank == 0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is to do next."""

    kind: Literal["collect", "find", "measure", "finish"]
    peers: tuple[RankInfo, ...] = ()
    """collect: the first ranks of all hosts, which listen."""
    missing: tuple[int, ...] = ()
    """find: the ranks whose processes are looked for."""
    probes: tuple[str, ...] = ()
    gpus_in_use: str = ""
    options: tuple[str, ...] = ()
    """measure: further options of the processes that measure."""
    environment: Mapping[str, str | None] = {}
    """measure: variables for the processes that measure; null: not even those that are set."""
    hosts: tuple[str, ...] = ()
    """measure: where the environment is changed; empty: everywhere."""
    code: int = 0
    """finish: the exit code of every rank but rank 0."""


class ProbeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended one probe."""

    outcome: Literal["completed", "skipped"]
    reason: str
    seconds: float
    section: bool
    """Whether this rank holds what was measured."""


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the measuring process of a rank has come."""

    beat: int
    pid: int
    doing: str
    age: float
    steps: int
    joined: bool
    began: tuple[str, ...] = ()
    ended: Mapping[str, ProbeEnd] = {}
    over: bool = False
    """The final report: the process has ended."""
    status: str = ""
    exit_code: int | None = None
    error: str = ""
    survivors: tuple[int, ...] = ()
    """Processes that could not be ended."""


class FoundProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a rank that never joined, as its host sees it."""

    rank: int
    host: str
    pid: int = 0
    status: str = ""
    age: float | None = None


class MemoryStore:
    """Of torch's stores the methods that are used here, where all ranks have one supervisor."""

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
    """The connection of one rank with the others."""

    def __init__(self, store: Store | MemoryStore, address: str, port: int) -> None:
        self._store = store
        self.address = address
        self.port = port

    def set(self, key: str, value: object) -> None:
        """Store a value under a key, instead of the earlier one."""
        self._call(lambda: self._store.set(key, msgspec.json.encode(value).decode()))

    def get(self, key: str, kind: type[Value]) -> Value | None:
        """The value under a key; None: there is none yet."""
        return self.get_all([key], kind).get(key)

    def get_all(self, keys: Iterable[str], kind: type[Value]) -> dict[str, Value]:
        """The values under those of these keys that have one."""

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
        """The values that come under these keys within so many seconds; rank 0 waits for them."""
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
        """Until a shared number is reached, or so many seconds are over."""
        deadline = time.monotonic() + seconds
        while self.add(key, 0) < number and time.monotonic() < deadline:
            time.sleep(tick)

    def _call(self, call: Callable[[], Any]) -> Any:
        """In a thread, because a connection to a host that has gone blocks for ever."""
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
    """The value that ``compressed`` made short."""
    return msgspec.json.decode(zlib.decompress(b64decode(text)), type=kind)


def free_port() -> int:
    """A port of this host that nothing listens on."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def connect(
    address: str, port: int, *, host_it: bool, limit: float, prefix: str = ""
) -> ClusterStore:
    """Open the store (on the rank that hosts it), or connect to it within ``limit`` seconds.

    Raises:
        StoreLost: it could not be opened or reached; the message says why.
    """
    # torch offers it there, and does not say so to type checkers.
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
            # Where something else has the port, torch waits for its answer for ever.
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
    """What a call comes to, in a thread that is left alone if it takes longer.

    Raises:
        TimeoutError: it did not end; otherwise what the call raises.
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
