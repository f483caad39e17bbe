"""Collects the flight records of a job's ranks, if the ranks keep any.

torch's control socket (``torch.distributed.elastic.control_plane.worker_main``) serves HTTP, if the
script has opened it. The thread that answers is native code without Python's lock: it answers in a
hanging run too. Otherwise NCCL's watchdog writes a file, and has a pipe to request one.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from math import inf
from pathlib import Path

import psutil

from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import FlightRecords, RankRecords
from ddoctor.evidence.live import LiveLook
from ddoctor.live import ras
from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.source import Source
from ddoctor.reading.flight_recorder import MOST_BYTES, Trace

# Seconds: a younger file is not requested again, however often ddoctor samples.
AGAIN_SECONDS = 60.0
# torch/csrc/distributed/c10d/FlightRecorder.cpp, DebugInfoWriter::getWriter: the first that is set.
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# The default names in torch's cache folder, of this version and of earlier ones.
USUAL = ("comm_lib_trace_rank_", "nccl_trace_rank_")
# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, DumpPipe
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
WRITE_SECONDS, EVERY_SECONDS = 2.0, 0.1
SOCKET = "TORCH_WORKER_SERVER_SOCKET"
SERVER_SECONDS = 1.0
# gloo's records and NCCL's; each build of torch has some of them. Neither has stacks: those need
# Python's lock, which a stuck rank may not release.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
# struct ucred of Linux: process, user, group
CREDENTIALS = "3i"


def records(rank_processes: Sequence[RankProcess], live: LiveLook) -> Iterator[FlightRecords]:
    """Yield the records of these ranks, if any rank offers some.

    A control socket is always asked, at no cost for the rank. A pipe and NCCL RAS are asked only
    if no sample shows progress, as the rank needs Python's lock to write a file.
    """
    state = LiveState.derive((live,))
    ask = state.hung or any(rank.seen.unseen for rank in state.ranks)
    with ThreadPoolExecutor(len(rank_processes) + 1) as threads:
        nccl = threads.submit(ras.trouble, rank_processes) if ask else None
        found = tuple(threads.map(lambda one: _of(one, ask=ask), rank_processes))
        ranks = tuple(one for one in found if one is not None)
        told = nccl.result() if nccl is not None else ()
    if ranks or told:
        yield FlightRecords(host=live.host, ranks=ranks, nccl=told)


def _of(rank_process: RankProcess, *, ask: bool) -> RankRecords | None:
    source = Source(rank_process.process)
    traces, at, told_by = _served(rank_process, source), time.time(), "control socket"
    if not traces:
        traces, at = _dumped(rank_process, source, ask=ask)
        told_by = "dump file"
    newest = max((one.newest for one in traces), default=0.0)
    if not newest:
        return None
    return RankRecords(
        rank=rank_process.rank,
        pid=rank_process.process.pid,
        told_by=told_by,
        age_seconds=round(max(0.0, time.time() - at), 1),
        idle_seconds=round(max(0.0, at - newest), 1),
        groups=tuple(group for one in traces for group in one.groups(source.frame)),
    )


def _served(rank_process: RankProcess, source: Source) -> Sequence[Trace]:
    """Return the traces from its control socket: gloo's and NCCL's."""
    named = rank_process.environment.get(SOCKET)
    told = asked(source.path(named), rank_process.process.pid) if named else ()
    with suppress(ValueError):
        return [one for one in map(Trace, told) if one.newest]
    return []


def _dumped(
    rank_process: RankProcess, source: Source, *, ask: bool
) -> tuple[Sequence[Trace], float]:
    """Return the traces from a file that it has written, and when it was written."""
    began = inf
    with suppress(psutil.Error):
        began = rank_process.process.create_time()
    pipe = request_pipe(rank_process.environment, rank_process.rank)
    for path in map(source.path, dump_files(rank_process.environment, rank_process.rank)):
        before = written(path)
        lately = time.time() - before < AGAIN_SECONDS
        if pipe and ask and not lately and request(source.path(pipe)):
            for raw in coming(path, before):
                with suppress(ValueError):
                    return [Trace(raw)], written(path)
        if before >= began:
            with suppress(OSError, ValueError):
                return [Trace(_content(path))], before
    return [], 0.0


def dump_files(environment: Mapping[str, str], rank: int) -> tuple[str, ...]:
    """Return the possible paths of a rank's records, by its environment."""
    named = next((environment[name] for name in FILES if name in environment), "")
    if named:
        return (f"{named}{rank}",)
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '/tmp')}/.cache"
    return tuple(f"{cache}/torch/{name}{rank}" for name in USUAL)


def request_pipe(environment: Mapping[str, str], rank: int) -> str:
    """Return the pipe on which a rank listens; empty: none."""
    named = environment.get(PIPE, "")
    return f"{named}{rank}.pipe" if named else ""


def request(path: Path) -> bool:
    """Ask for a new file without waiting; return whether a process listens on the pipe."""
    with suppress(OSError):
        # Without a reader, this non-blocking open is an error.
        opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            if stat.S_ISFIFO(os.fstat(opened).st_mode):
                return os.write(opened, b"1\n") > 0
        finally:
            os.close(opened)
    return False


def written(path: Path) -> float:
    """Return when a file was written, in seconds since 1970; 0: there is none."""
    with suppress(OSError):
        told = path.stat()
        return told.st_mtime if stat.S_ISREG(told.st_mode) else 0.0
    return 0.0


def coming(path: Path, before: float) -> Iterator[bytes]:
    """Yield a file's content for two seconds, once it is newer than ``before``.

    The first contents may be incomplete.
    """
    deadline = time.monotonic() + WRITE_SECONDS
    while time.monotonic() < deadline:
        if written(path) not in (0.0, before):
            with suppress(OSError):
                yield _content(path)
        time.sleep(EVERY_SECONDS)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


class _Connection(HTTPConnection):
    """An HTTP connection to a Unix socket, which must belong to this process."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__("localhost", timeout=SERVER_SECONDS)
        self._path, self._pid = path, pid

    def connect(self) -> None:
        folder = os.open(self._path.parent, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(SERVER_SECONDS)
            # An address has at most 108 bytes, and a path may have more.
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)
        told = self.sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(CREDENTIALS)
        )
        if struct.unpack(CREDENTIALS, told)[0] != self._pid:
            raise ConnectionError("all ranks use the same socket path, and another rank owns it")


def asked(path: Path, pid: int) -> Iterator[bytes]:
    """Yield the records of worker ``pid`` as JSON; none if it does not answer within a second."""
    with suppress(OSError, HTTPException):
        offered = _answer(path, pid, "GET", "")
        for name in HANDLERS:
            if f'"{name}"'.encode() in offered:
                yield _answer(path, pid, "POST", name)


def _answer(path: Path, pid: int, method: str, name: str) -> bytes:
    connection = _Connection(path, pid)
    try:
        connection.request(method, f"/handler/{name}")
        return connection.getresponse().read(MOST_BYTES + 1)
    finally:
        connection.close()
