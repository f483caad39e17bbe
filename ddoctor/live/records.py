"""Collects the flight records of a job's ranks, if the ranks keep any.

torch's control socket (``torch.distributed.elastic.control_plane.worker_main``) serves HTTP, if the
script has opened it. The thread that answers is native code without Python's lock: it answers in a
hanging run too. Otherwise NCCL's watchdog writes a file, and has a pipe to request one.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    if not (named := rank_process.environment.get(SOCKET)):
        return []
    # The HTTP client takes CPU time to load, and few runs have such a socket.
    from ddoctor.live.control_socket import asked

    told = asked(source.path(named), rank_process.process.pid)
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
