"""A rank's supervisor: it carries out rank 0's orders, and measures nothing itself.

What measures is a process of its own for each order, so that a collective that hangs or dies leaves
the supervisor free to say so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from itertools import count
from operator import or_
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psutil

from ddoctor.cluster.reachability import attempts
from ddoctor.cluster.store import (
    FINISHED,
    HEARTBEAT,
    ClusterStore,
    FoundProcess,
    Order,
    ProbeEnd,
    RankInfo,
    RankProgress,
    found_key,
    host_key,
    order_key,
    progress_key,
    section_key,
    stop_key,
)
from ddoctor.collect import collect
from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.joining import Reach
from ddoctor.evidence.section import Absence, Absent, Section, Unseen
from ddoctor.probing.follower import last_line
from ddoctor.probing.journal import Follower, JournalLine
from ddoctor.proc import processes

INTERRUPTED = "interrupted there: Ctrl-C, or a signal to end"
"""The last words of a rank whose supervisor was told to end."""

MARK = "DDOCTOR_SUPERVISED"
"""The environment variable that the processes of one order carry."""

TICK_SECONDS = 0.2
# The store answers about 100,000 questions a second, and every rank asks at each tick.
RANKS_PER_TICK = 1000
# A word is said when something is new, and at least this often.
BEAT_SECONDS = 1.0
GRACE_SECONDS = 0.5

# Rank 0 is busy for as long as its collectors may take, and no longer.
COORDINATOR_SILENCE_SECONDS = 60.0

# What all hosts send must fit the store of rank 0; a host's sections are some 100 kB.
MOST_BYTES = 4 * 2**20


def tick_seconds(ranks: int) -> float:
    """How long a rank sleeps before it looks again: of many ranks each asks less often."""
    return TICK_SECONDS * max(1.0, ranks / RANKS_PER_TICK)


class CoordinatorLost(Exception):
    """Rank 0, which writes the report, is not heard of any more."""


class Measuring:
    """The measuring process of this rank during one order."""

    def __init__(
        self, store: ClusterStore, me: RankInfo, number: int, order: Order, data: Path
    ) -> None:
        self._store, self._rank, self._number = store, me.rank, number
        self._folder = TemporaryDirectory(prefix="ddoctor-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._errors = folder / "errors.txt"
        self._follower = Follower(folder, me.rank)
        self._mark = {MARK: uuid.uuid4().hex}
        self._born = time.monotonic()
        self._lines: list[JournalLine] = []
        self._last: JournalLine | None = None
        self._steps = 0
        self._joined = False
        self._began: dict[str, float] = {}
        self._ended: dict[str, ProbeEnd] = {}
        self._said = 0.0
        self._beat = 0
        with self._errors.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ddoctor.probing.worker",
                    f"--folder={folder}",
                    f"--data={data.resolve()}",
                    f"--gpus-in-use={order.gpus_in_use}",
                    f"--store-prefix=order-{number}",
                    *order.options,
                    *order.probes,
                ],
                cwd=folder,
                env=_environment(store, me, order) | self._mark,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # torchrun ends a rank with its process group: the order of ending is ours.
                start_new_session=True,
            )
        self.over = False

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.end(INTERRUPTED if kind is KeyboardInterrupt else "")

    def tick(self) -> None:
        """Read on in the journal, and say what is new."""
        gone = self._process.poll() is not None
        new = self._read()
        if gone:
            self.end()
        elif new or time.monotonic() - self._said > BEAT_SECONDS:
            self._say()

    def end(self, why: str = "") -> None:
        """Look a last time, end the process with all that it started, and say the last word."""
        if self.over:
            return
        self.over = True
        code = self._process.poll()
        status = processes.statuses([self._process.pid])[self._process.pid] if code is None else ""
        processes.end(GRACE_SECONDS if code is None else 0.0, **self._mark)
        self._process.poll()
        self._read()
        self._say(status=status, code=code, why=why)
        self._folder.cleanup()

    def _read(self) -> bool:
        new = list(self._follower.new_lines())
        for line in new:
            self._last = line
            self._steps += 1
            self._joined = self._joined or line.doing == "joined"
            if line.probe:
                self._began.setdefault(line.probe, line.time)
            if line.outcome in ("completed", "skipped"):
                self._take_end(line)
        return bool(new)

    def _take_end(self, line: JournalLine) -> None:
        holds = bytes(line.section) != b"null"
        if holds:
            self._store.set(section_key(self._number, self._rank, line.probe), line.section)
        self._ended[line.probe] = ProbeEnd(
            outcome="skipped" if line.outcome == "skipped" else "completed",
            reason=line.reason,
            seconds=line.time - self._began[line.probe],
            section=holds,
        )

    def _say(self, *, status: str = "", code: int | None = None, why: str = "") -> None:
        self._beat += 1
        self._said = now = time.monotonic()
        words = why
        if self._last is not None and self._last.outcome == "failed":
            words = self._last.reason
        elif code:
            words = last_line(self._errors)
        word = RankProgress(
            beat=self._beat,
            pid=self._process.pid,
            doing=self._last.doing if self._last else "starting",
            age=now - (self._last.time if self._last else self._born),
            steps=self._steps,
            joined=self._joined,
            began=tuple(self._began),
            ended=self._ended,
            over=self.over,
            status=status,
            # One that has told its error is not told again by its exit code.
            exit_code=code or None,
            words=words,
        )
        self._store.set(progress_key(self._number, self._rank), word)


def serve(store: ClusterStore, me: RankInfo, data: Path) -> int:
    """Carry out rank 0's orders until the last one; the exit code that it gives.

    Raises:
        CoordinatorLost: rank 0 is not heard of any more.
        StoreLost: the store is gone.
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
            with Measuring(store, me, number, order, data) as measuring:
                while not measuring.over:
                    measuring.tick()
                    coordinator.check()
                    if store.get(stop_key(number), bool):
                        measuring.end()
                    time.sleep(tick)
    raise AssertionError("the orders never end")


class CoordinatorHeartbeat:
    """Rank 0 as the others hear it: it counts on while it is there."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._count = -1
        self._heard = self._asked = time.monotonic()

    def check(self) -> None:
        """Once a second at most; rank 0 must have counted on within its time."""
        now = time.monotonic()
        if now - self._asked < BEAT_SECONDS:
            return
        self._asked = now
        counted = self._store.add(HEARTBEAT, 0)
        if counted != self._count:
            self._count, self._heard = counted, now
        elif now - self._heard > COORDINATOR_SILENCE_SECONDS:
            raise CoordinatorLost(
                f"rank 0, which writes the report, was not heard of for "
                f"{COORDINATOR_SILENCE_SECONDS:.0f} s: look at its process (stopped? gone?)"
            )


def collect_host(peers: Sequence[RankInfo], me: RankInfo) -> str:
    """All there is to see of this host, packed."""
    sections: list[Section] = [Reach(attempts=attempts(me, peers))]
    absences: list[Absence] = []
    for outcome in collect(lambda label: None):
        if isinstance(outcome, Section):
            sections.append(outcome)
        else:
            absences.append(outcome)
    return pack([*sections, Absent(sections=tuple(absences))], me.host)


def pack(sections: Sequence[Section], host: str) -> str:
    """Sections of a host as a short text; what would make it too long is left out, and named."""
    placed = [msgspec.structs.replace(section, host=host) for section in sections]
    packed = _packed(placed)
    while len(packed) > MOST_BYTES:
        largest = max(placed, key=lambda section: len(msgspec.json.encode(section)))
        why = Unseen(what=largest.label(), why="too large to be sent to rank 0")
        placed = [
            msgspec.structs.replace(one, unseen=(*one.unseen, why))
            if isinstance(one, Absent)
            else one
            for one in placed
            if one is not largest
        ]
        packed = _packed(placed)
    return packed


def unpack(packed: str) -> tuple[Section, ...]:
    """The sections that ``pack`` packed."""
    kinds: Any = reduce(or_, section_types())
    text = zlib.decompress(b64decode(packed))
    found: tuple[Section, ...] = msgspec.json.decode(text, type=tuple[kinds, ...])
    return found


def _packed(sections: Sequence[Section]) -> str:
    return b64encode(zlib.compress(msgspec.json.encode(sections), 1)).decode()


def find_processes(ranks: Sequence[int], host: str) -> tuple[FoundProcess, ...]:
    """The processes on this host of ranks of this run that never spoke."""
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


def _environment(store: ClusterStore, me: RankInfo, order: Order) -> dict[str, str]:
    """For the measuring process: torch is to take the store that there is, as torchrun's own."""
    changes = order.environment if me.host in (order.hosts or [me.host]) else {}
    outer = {"TORCHELASTIC_ERROR_FILE", *changes}
    ours = {name: value for name, value in changes.items() if value is not None}
    return (
        {name: value for name, value in os.environ.items() if name not in outer}
        | ours
        | {
            "RANK": str(me.rank),
            "LOCAL_RANK": str(me.local_rank),
            "WORLD_SIZE": str(me.world_size),
            "LOCAL_WORLD_SIZE": str(me.local_size),
            "MASTER_ADDR": store.address,
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # A queue.py in the user's folder must not be imported in place of Python's own.
            "PYTHONSAFEPATH": "1",
        }
    )
