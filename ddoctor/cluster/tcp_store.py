"""A client of torch's TCPStore without torch, whose import takes 120 MiB and a CPU second per rank.

The protocol is torch's own matter, and its header has the numbers. Where they differ, or cannot be
read, the store is reached with torch.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from weakref import finalize

HEADER = "include/torch/csrc/distributed/c10d/TCPStoreBackend.hpp"
MAGIC = 0x3C85F7CE
READY = 0


class Query(IntEnum):
    """What a request asks for."""

    VALIDATE = 0
    SET = 1
    ADD = 4
    CHECK = 5
    MULTI_GET = 10
    PING = 13


def spoken(torch: Path | None = None) -> bool:
    """Whether this is the protocol of the installed torch, or of that in a folder."""
    try:
        text = ((torch or _installed()) / HEADER).read_text()
    except OSError:
        return False
    magic = re.search(r"validationMagicNumber = (0x\w+);", text)
    names = re.search(r"enum class QueryType[^{]*{([^}]*)}", text)
    if magic is None or names is None or "CheckResponseType : uint8_t { READY," not in text:
        return False
    numbers = {name: number for number, name in enumerate(re.findall(r"\w+", names[1]))}
    return int(magic[1], 16) == MAGIC and all(numbers.get(one.name) == one for one in Query)


def _installed() -> Path:
    found = find_spec("torch")
    return Path(found.origin).parent if found is not None and found.origin else Path(os.devnull)


class TcpStore:
    """A connection to a TCPStore: what ddoctor needs of torch's class of that name."""

    def __init__(self, address: str, port: int, seconds: float) -> None:
        """Connect within ``seconds``.

        Raises:
            OSError: the store cannot be reached, or does not answer.
        """
        self._lock = Lock()
        self._there: set[str] = set()
        """Keys that have a value, and keep one."""
        self._connection = socket.create_connection((address, port), seconds)
        finalize(self, self._connection.close)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._greet()
        # Its user limits the waits: an answer that comes late is still read.
        self._connection.settimeout(None)

    def set(self, key: str, value: str) -> None:
        with self._asked(_query(Query.SET), _key(key), _text(value)):
            return

    def add(self, key: str, more: int) -> int:
        with self._asked(_query(Query.ADD), _key(key), _number(more)):
            return self._read_number()

    def exchange(self, key: str, value: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Set a value, and get others, in one message: it wakes the store once."""
        if not self._there.issuperset(keys):
            self.set(key, value)
            return self.get(keys)
        return self._values(keys, _query(Query.SET), _key(key), _text(value))

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of these keys, without the keys that have none."""
        unsure = [key for key in keys if key not in self._there]
        # One request a key, but one wait: on a busy host, each may take a tenth of a second.
        with self._asked(*(_query(Query.CHECK) + _keys([key]) for key in unsure)):
            answers = self._read(len(unsure))
        self._there.update(
            key for key, answer in zip(unsure, answers, strict=True) if answer == READY
        )
        there = [key for key in keys if key in self._there]
        return self._values(there) if there else {}

    def _values(self, keys: Sequence[str], *before: bytes) -> dict[str, bytes]:
        with self._asked(*before, _query(Query.MULTI_GET), _keys(keys)):
            return {key: self._read(self._read_number()) for key in keys}

    def _greet(self) -> None:
        own = secrets.token_bytes(4)
        magic = struct.pack("=I", MAGIC)
        with self._asked(_query(Query.VALIDATE), magic, _query(Query.PING), own):
            if self._read(len(own)) != own:
                raise ConnectionError("another program answers")

    @contextmanager
    def _asked(self, *request: bytes) -> Iterator[None]:
        """Send a request, whose answer is to be read before the next one."""
        with self._lock:
            try:
                self._connection.sendall(b"".join(request))
                yield
            except OSError:
                # The rest of this answer is none to the next request.
                self._connection.close()
                raise

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            more = self._connection.recv(size - len(read))
            if not more:
                raise ConnectionError("the connection was closed")
            read += more
        return bytes(read)

    def _read_number(self) -> int:
        return int(struct.unpack("=q", self._read(8))[0])


def _query(query: Query) -> bytes:
    return bytes([query])


def _number(number: int) -> bytes:
    return struct.pack("=q", number)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _number(len(encoded)) + encoded


def _key(key: str) -> bytes:
    # torch's own client puts the slash before each key.
    return _text(f"/{key}")


def _keys(keys: Sequence[str]) -> bytes:
    return _number(len(keys)) + b"".join(map(_key, keys))
