"""Queries NCCL RAS for a live job: processes that do not answer, and differing counts.

From NCCL 2.24 on, a thread of each process listens unless NCCL_RAS_ENABLE is 0. The thread that
is asked collects the answers of all processes.
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.sockets import inodes, network, tcp_rows

ADDRESS, USUAL = "NCCL_RAS_ADDR", "localhost:28028"
PROTOCOL = 2
# How long RAS may wait for its peers, and how long ddoctor waits for RAS.
PEERS_SECONDS, LIMIT_SECONDS = 3, 5.0
# A listening RAS answers at once.
CONNECT_SECONDS = 0.5
# src/ras/client_support.cc: after the tables come these two parts, each underlined.
ERRORS, WARNINGS = "Errors", "Warnings"
# It lists each rank of up to half of a communicator.
MOST_LINES = 40


def trouble(rank_processes: Sequence[RankProcess]) -> tuple[str, ...]:
    """Return RAS's lines about errors, missing processes and differing counts.

    Empty: there are none, or RAS is not available.
    """
    for one in rank_processes:
        address = one.environment.get(ADDRESS, USUAL if one.on_gpu else "")
        # In another network namespace, localhost is another host.
        if address and network(one.process.pid) == network("self"):
            lines = _told(_status(address, rank_processes).splitlines())
            return tuple(itertools.islice(lines, MOST_LINES))
    return ()


def _told(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines below the headings."""
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
        connection.sendall(f"client protocol {PROTOCOL}\n".encode())
        # After an answer, the connection is accepted, so its owner is visible.
        hello = connection.recv(256)
        if hello.startswith(b"SERVER PROTOCOL") and _is_of(rank_processes, connection):
            connection.sendall(f"timeout {PEERS_SECONDS}\nverbose status\n".encode())
            # RAS closes the connection after its answer.
            connection.settimeout(LIMIT_SECONDS)
            return connection.makefile(errors="replace").read()
    return ""


def _is_of(rank_processes: Sequence[RankProcess], connection: socket.socket) -> bool:
    """Whether these ranks own the other end: all jobs of a host share the address."""
    ours, theirs = connection.getsockname()[1], connection.getpeername()[1]
    ends = f":{theirs:04X}", f":{ours:04X}"
    found = (words[9] for words in tcp_rows("self") if (words[1][-5:], words[2][-5:]) == ends)
    inode = next(found, "")
    return any(inode in inodes(one.process.pid) for one in rank_processes)
