"""The files into which NCCL's watchdog writes the flight records of a rank, and the pipe that asks
it to."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

# torch/csrc/distributed/c10d/FlightRecorder.cpp, DebugInfoWriter::getWriter: the first that is set.
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# By default, of this and of earlier versions, in the folder of torch's cache.
USUAL = ("comm_lib_trace_rank_", "nccl_trace_rank_")
# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, DumpPipe
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
LIMIT_SECONDS, EVERY_SECONDS = 2.0, 0.1


def files(environment: Mapping[str, str], rank: int) -> tuple[str, ...]:
    """Where the records of a rank may lie, as it was started."""
    named = next((environment[name] for name in FILES if name in environment), "")
    if named:
        return (f"{named}{rank}",)
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '/tmp')}/.cache"
    return tuple(f"{cache}/torch/{name}{rank}" for name in USUAL)


def pipe(environment: Mapping[str, str], rank: int) -> str:
    """The pipe that a rank listens at; empty: none."""
    named = environment.get(PIPE, "")
    return f"{named}{rank}.pipe" if named else ""


def ask(path: Path) -> bool:
    """For a new file, without ever waiting; whether somebody listens."""
    with suppress(OSError):
        # Nobody at its other end: an error, as it is not to wait for anybody.
        opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            if stat.S_ISFIFO(os.fstat(opened).st_mode):
                return os.write(opened, b"1\n") > 0
        finally:
            os.close(opened)
    return False


def written(path: Path) -> float:
    """When a file was written, in seconds since 1970; 0: there is none."""
    with suppress(OSError):
        told = path.stat()
        return told.st_mtime if stat.S_ISREG(told.st_mode) else 0.0
    return 0.0


def coming(path: Path, before: float) -> Iterator[bytes]:
    """For two seconds, what a file holds that is another than the one that was written before; it
    may not be whole at once."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if written(path) not in (0.0, before):
            with suppress(OSError):
                yield path.read_bytes()
        time.sleep(EVERY_SECONDS)
