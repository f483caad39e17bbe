"""The folders in which torch builds extensions for the ranks, and the locks there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ddoctor.evidence.live import BuildLock, BuildLocks
from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.source import Source

# torch/utils/cpp_extension.py, _jit_compile
LOCK = "lock"


def build_locks(rank_processes: Sequence[RankProcess]) -> BuildLocks:
    """Return the locks in the folders that torch chooses or the environment names."""
    locks: dict[tuple[int, int], BuildLock] = {}
    for path, lock in (found for one in rank_processes for found in _found(one)):
        with suppress(OSError):
            state = lock.stat()
            if (file := (state.st_dev, state.st_ino)) not in locks:
                age = round(max(0.0, time.time() - state.st_mtime), 1)
                locks[file] = BuildLock(path=path, age_seconds=age, holder=_holder(state))
    return BuildLocks(locks=tuple(locks.values()))


def _found(rank_process: RankProcess) -> Iterator[tuple[str, Path]]:
    """Yield the path of each lock as the rank sees it, and as ddoctor sees it."""
    with suppress(psutil.Error, OSError):
        folder, pattern = _folder(rank_process.environment, Path(rank_process.process.cwd()))
        here = Source(rank_process.process).path(str(folder))
        for lock in here.glob(pattern):
            yield str(folder / lock.relative_to(here)), lock


def _folder(environment: Mapping[str, str], working: Path) -> tuple[Path, str]:
    """Return the root of the build folders and the pattern of locks in it.

    By torch/utils/cpp_extension.py, _get_build_directory: a folder for each extension; by
    default within a folder for each version of Python and CUDA.
    """
    if named := environment.get("TORCH_EXTENSIONS_DIR"):
        return working / named, f"*/{LOCK}"
    home = environment.get("HOME", "/")
    cache = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return working / cache / "torch_extensions", f"*/*/{LOCK}"


def _holder(lock: os.stat_result) -> int | None:
    """Return the PID that holds a lock: it keeps the file open (torch/utils/file_baton.py)."""
    for process in psutil.process_iter():
        with suppress(OSError):
            for one in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    # No stat() of each: it would block on a network file system that is gone.
                    named = os.readlink(one).rpartition("/")[2] == LOCK
                    if named and os.path.samestat(one.stat(), lock):
                        return process.pid
    return None
