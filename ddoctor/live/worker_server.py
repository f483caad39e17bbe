"""torch's control socket of a worker, where the script has opened it: asked for its records.

``torch.distributed.elastic.control_plane.worker_main`` serves HTTP over a Unix socket. The thread
that answers is native code and needs no lock of Python's: it does so in a run that hangs, too.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

SOCKET = "TORCH_WORKER_SERVER_SOCKET"
LIMIT_SECONDS = 1.0
# gloo's records, and NCCL's; each build of torch has some. Neither holds stacks: to write these
# takes the lock of Python's that a rank which stands still may not let go.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
# struct ucred of Linux: process, user, group
CREDENTIALS = "3i"


class _Connection(HTTPConnection):
    """To a socket in the file system that this process listens at."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__("localhost", timeout=LIMIT_SECONDS)
        self._path, self._pid = path, pid

    def connect(self) -> None:
        folder = os.open(self._path.parent, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(LIMIT_SECONDS)
            # An address has 108 bytes, and a path may have more.
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)
        told = self.sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(CREDENTIALS)
        )
        if struct.unpack(CREDENTIALS, told)[0] != self._pid:
            raise ConnectionError("all ranks were given the same socket, and one of them has it")


def asked(path: Path, pid: int) -> Iterator[bytes]:
    """The records of the worker ``pid``, as JSON; none, if it does not answer within a second."""
    with suppress(OSError, HTTPException):
        offered = _answer(path, pid, "GET", "")
        for name in HANDLERS:
            if f'"{name}"'.encode() in offered:
                yield _answer(path, pid, "POST", name)


def _answer(path: Path, pid: int, method: str, name: str) -> bytes:
    connection = _Connection(path, pid)
    try:
        connection.request(method, f"/handler/{name}")
        return connection.getresponse().read()
    finally:
        connection.close()
