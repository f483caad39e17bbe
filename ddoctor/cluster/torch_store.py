"""torch's own TCPStore, for the rank that hosts it and where only torch knows the protocol."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from importlib import import_module

import psutil

from ddoctor.proc import processes

IMPORT_SECONDS = 60.0
LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
TRY = (
    "import resource; resource.setrlimit(resource.RLIMIT_AS, ({0}, {0})); import torch.distributed"
)


@cache
def import_torch() -> None:
    """Import torch without its C++ log, which prints a stack for every failed connection.

    Raises:
        OSError: the address space of this process is too small for it.
    """
    _check_room()
    if quiet := LOG_LEVEL not in os.environ:
        # torch reads it once, at import. It is no variable of the user's, so os.environ lacks it.
        os.putenv(LOG_LEVEL, "FATAL")
    # NumPy, which torch imports in native code, may swallow a KeyboardInterrupt.
    with processes.undisturbed():
        import_module("torch.distributed")
    if quiet:
        os.unsetenv(LOG_LEVEL)


def _check_room() -> None:
    """Try the import in another process: OpenBLAS, which NumPy loads, ends one without room."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    room = max(0, limit - psutil.Process().memory_info().vms)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", TRY.format(room)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=IMPORT_SECONDS,
        ).returncode
    except subprocess.TimeoutExpired:
        ended = None  # it may wait for a thread that it had no room to start
    if ended != 0:
        raise OSError(f"no room for torch (ulimit -v {limit >> 10})")


class TorchStore:
    """torch's TCPStore with the methods of ``TcpStore``."""

    def __init__(self, address: str, port: int, seconds: float, *, host_it: bool = False) -> None:
        """Open the store, or connect to it within ``seconds``.

        Raises:
            OSError, RuntimeError: it cannot be opened or reached.
        """
        # torch has it there, but its type stubs do not.
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        limit = timedelta(seconds=seconds)
        self._store = TCPStore(address, port, None, host_it, limit, wait_for_workers=False)
        self.port: int = self._store.port

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def add(self, key: str, more: int) -> int:
        return int(self._store.add(key, more))

    def exchange(self, key: str, value: str, keys: Sequence[str]) -> dict[str, bytes]:
        self.set(key, value)
        return self.get(keys)

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        there = [key for key in keys if self._store.check([key])]
        return dict(zip(there, self._store.multi_get(there) if there else (), strict=True))
