"""NCCL's own service for a live job, RAS: which processes do not answer, which counts differ.

A thread of each process listens, from NCCL 2.24 on and unless NCCL_RAS_ENABLE is 0; one of them
gathers the answers of all.
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.sockets import inodes, network, tcp_rows

ADDRESS, USUAL = "NCCL_RAS_ADDR", "localhost:28028"
PROTOCOL = 2
# What it may wait for its peers, and what we wait for it.
PEERS_SECONDS, LIMIT_SECONDS = 3, 5.0
# Whoever listens there answers at once.
CONNECT_SECONDS = 0.5
# src/ras/client_support.cc: behind the tables there are these two parts, each with a line below it.
ERRORS, WARNINGS = "Errors", "Warnings"
# It lists each rank of up to half of a communicator.
MOST_LINES = 40


def trouble(rank_processes: Sequence[RankProcess]) -> tuple[str, ...]:
    """What it says of errors, missing processes and counts that differ, line by line; empty:
    nothing, or it is not there."""
    for one in rank_processes:
        address = one.environment.get(ADDRESS, USUAL if one.on_gpu else "")
        # Its localhost is not ours in another network.
        if address and network(one.process.pid) == network("self"):
            lines = _told(_status(address, rank_processes).splitlines())
            return tuple(itertools.islice(lines, MOST_LINES))
    return ()


def _told(lines: Iterable[str]) -> Iterator[str]:
    """What stands under the headings."""
    inside = False
    for line in lines:
        if line in (ERRORS, WARNINGS):
            inside = True
        elif inside and line.strip("= "):
            yield line.rstrip()


def _status(address: str, rank_processes: Sequence[RankProcess]) -> str:
    host, _, port = address.rpartition(":")
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection,
    ):
        deadline = time.monotonic() + LIMIT_SECONDS
        connection.sendall(f"client protocol {PROTOCOL}\n".encode())
        # That it has answered means that somebody has taken the connection up, and who.
        hello = connection.recv(256)
        if hello.startswith(b"SERVER PROTOCOL") and _is_of(rank_processes, connection):
            connection.sendall(f"timeout {PEERS_SECONDS}\nverbose status\n".encode())
            return _rest(connection, deadline)
    return ""


def _rest(connection: socket.socket, deadline: float) -> str:
    """All that comes until it closes the connection, as it does at the end."""
    told = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        piece = connection.recv(1 << 16)
        if not piece:
            return told.decode(errors="replace")
        told += piece
    return ""


def _is_of(rank_processes: Sequence[RankProcess], connection: socket.socket) -> bool:
    """Whether these ranks hold the other end: all jobs of a host share the address."""
    ours, theirs = connection.getsockname()[1], connection.getpeername()[1]
    ends = f":{theirs:04X}", f":{ours:04X}"
    found = (words[9] for words in tcp_rows("self") if (words[1][-5:], words[2][-5:]) == ends)
    inode = next(found, "")
    return any(inode in inodes(one.process.pid) for one in rank_processes)
