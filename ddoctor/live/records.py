"""Collects the flight records of a job's ranks, if the ranks keep any."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf

import psutil

from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import FlightRecords, RankRecords
from ddoctor.evidence.live import LiveLook
from ddoctor.live import dumps, ras, worker_server
from ddoctor.live.flight_recorder import Trace
from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.source import Source

# Seconds: a younger file is not requested again, however often ddoctor samples.
AGAIN_SECONDS = 60.0


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
    named = rank_process.environment.get(worker_server.SOCKET)
    told = worker_server.asked(source.path(named), rank_process.process.pid) if named else ()
    with suppress(ValueError):
        return [one for one in map(Trace, told) if one.newest]
    return []


def _dumped(
    rank_process: RankProcess, source: Source, *, ask: bool
) -> tuple[Sequence[Trace], float]:
    """Return the traces from a file that it has written, and when it was written."""
    began = _began(rank_process)
    pipe = dumps.pipe(rank_process.environment, rank_process.rank)
    for path in map(source.path, dumps.files(rank_process.environment, rank_process.rank)):
        before = dumps.written(path)
        lately = time.time() - before < AGAIN_SECONDS
        if pipe and ask and not lately and dumps.ask(source.path(pipe)):
            for raw in dumps.coming(path, before):
                with suppress(ValueError):
                    return [Trace(raw)], dumps.written(path)
        if before >= began:
            with suppress(OSError, ValueError):
                return [Trace(path.read_bytes())], before
    return [], 0.0


def _began(rank_process: RankProcess) -> float:
    with suppress(psutil.Error):
        return rank_process.process.create_time()
    return inf
