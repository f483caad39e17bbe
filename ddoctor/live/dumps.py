"""The files of a rank's flight records that NCCL's watchdog writes, and the pipe to request one."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

# torch/csrc/distributed/c10d/FlightRecorder.cpp, DebugInfoWriter::getWriter: the first that is set.
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# The default names in torch's cache folder, of this version and of earlier ones.
USUAL = ("comm_lib_trace_rank_", "nccl_trace_rank_")
# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, DumpPipe
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
LIMIT_SECONDS, EVERY_SECONDS = 2.0, 0.1


def files(environment: Mapping[str, str], rank: int) -> tuple[str, ...]:
    """Return the possible paths of a rank's records, by its environment."""
    named = next((environment[name] for name in FILES if name in environment), "")
    if named:
        return (f"{named}{rank}",)
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '/tmp')}/.cache"
    return tuple(f"{cache}/torch/{name}{rank}" for name in USUAL)


def pipe(environment: Mapping[str, str], rank: int) -> str:
    """Return the pipe on which a rank listens; empty: none."""
    named = environment.get(PIPE, "")
    return f"{named}{rank}.pipe" if named else ""


def ask(path: Path) -> bool:
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
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if written(path) not in (0.0, before):
            with suppress(OSError):
                yield path.read_bytes()
        time.sleep(EVERY_SECONDS)
