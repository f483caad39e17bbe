"""The kernel's send and receive queues of connections to other hosts, and their send rate."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import psutil

from ddoctor.evidence.live import LiveLink

ESTABLISHED = "01"
MIB = 2**20


class Sockets:
    """Samples the TCP connections of these processes with other hosts."""

    def __init__(self, pids: Sequence[int]) -> None:
        # One process of each network namespace.
        self._pids = {network(pid): pid for pid in pids}.values()
        # Ranks connect at the rendezvous, and a rank may have thousands of open files.
        self._own = {inode for pid in pids for inode in inodes(pid)}
        # In a container, a rank has interfaces that are not visible from outside.
        self._here = any(network(pid) == network("self") for pid in pids)
        self._began = time.monotonic()
        self._sent = self._counted()
        self._met: Counter[tuple[str, str]] = Counter()
        self._unsent: Counter[tuple[str, str]] = Counter()
        self._unread: Counter[tuple[str, str]] = Counter()

    def sample(self) -> bool:
        """Sample the queues now; return whether there are any connections."""
        own = [one for pid in self._pids for one in _connections(pid, self._own)]
        self._met.update({one.way for one in own})
        self._unsent.update({one.way for one in own if one.unsent})
        self._unread.update({one.way for one in own if one.unread})
        return bool(own)

    def summary(self) -> tuple[LiveLink, ...]:
        """Return what was seen so far, by pair of addresses."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        sent = self._counted()
        names = _names() if self._here else {}
        speeds = psutil.net_if_stats() if self._here else {}
        return tuple(
            LiveLink(
                local=local,
                remote=remote,
                queued=round(self._unsent[local, remote] / met, 3),
                unread=round(self._unread[local, remote] / met, 3),
                interface=name,
                sent=round((sent[name] - self._sent[name]) / MIB / seconds, 3)
                if name in sent and name in self._sent
                else None,
                speed=(speeds[name].speed or None) if name in speeds else None,
            )
            for (local, remote), met in sorted(self._met.items())
            for name in [names.get(local, "")]
        )

    def _counted(self) -> Mapping[str, int]:
        """Return the bytes that each interface has sent."""
        if not self._here:
            return {}
        return {name: one.bytes_sent for name, one in psutil.net_io_counters(pernic=True).items()}


def network(pid: int | str) -> str:
    """Return the network namespace of a process."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""


def inodes(pid: int) -> Iterator[str]:
    """Yield the inode numbers of a process's sockets."""
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(one.readlink())
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def tcp_rows(pid: int | str) -> Iterator[Sequence[str]]:
    """Yield the TCP sockets of a process's network, as the words of /proc/PID/net/tcp (proc(5))."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()
            yield from (line.split() for line in lines[1:])


class Connection(NamedTuple):
    """An established connection, with its bytes that are not yet acknowledged or not yet read."""

    way: tuple[str, str]
    unsent: int
    unread: int


def _connections(pid: int, own: Collection[str]) -> Iterator[Connection]:
    """Yield the connections with these inodes to other hosts."""
    for words in tcp_rows(pid):
        if words[3] == ESTABLISHED and words[9] in own:
            unsent, unread = (int(one, 16) for one in words[4].split(":"))
            local, remote = _address(words[1]), _address(words[2])
            if local != remote and not ip_address(remote).is_loopback:
                yield Connection((local, remote), unsent, unread)


def _address(told: str) -> str:
    """Return an address from the kernel's 32-bit words, each in the byte order of the CPU."""
    digits = told.partition(":")[0]
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    found = ip_address(b"".join(struct.pack("=I", word) for word in words))
    return str(getattr(found, "ipv4_mapped", None) or found)


def _names() -> Mapping[str, str]:
    """Return the interface of each address of this host."""
    return {
        one.address.partition("%")[0]: name
        for name, every in psutil.net_if_addrs().items()
        for one in every
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }
