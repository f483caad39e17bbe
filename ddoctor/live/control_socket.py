"""The control socket of a rank: torch's HTTP server in each worker, on a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from ddoctor.reading.flight_recorder import MOST_BYTES

SERVER_SECONDS = 1.0
# gloo's records and NCCL's; each build of torch has some of them. Neither has stacks: those need
# Python's lock, which a stuck rank may not release.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
# struct ucred of Linux: process, user, group
CREDENTIALS = "3i"


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
