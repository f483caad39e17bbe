"""Ranks that a script started itself, say by ``mp.spawn`` or Lightning, without a launcher.

What a script writes into ``os.environ`` cannot be seen from outside. So they are those copies of
one program that are connected with each other, numbered in the order in which they were started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import psutil

from ddoctor.live.sockets import ESTABLISHED, inodes, network, tcp_rows


def groups(
    programs: Mapping[int, str], ancestors: Mapping[int, Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return the PIDs of the ranks of each run, in the order of their ranks.

    ``programs``: what each process runs. A group has at least two processes: one is the parent of
    the others, or all have the same parent.
    """
    if len(programs) < 2:
        return []
    peers: dict[int, set[int]] = {pid: {pid} for pid in programs}
    holders = _holders(programs, ancestors)
    for (net, local, remote), pid in holders.items():
        other = holders.get((net, remote, local), pid)
        related = {pid, *ancestors[pid][:1]} & {other, *ancestors[other][:1]}
        if other != pid and related and programs[pid] == programs[other]:
            peers[pid].add(other)
    found: list[tuple[int, ...]] = []
    left = set(programs)
    while left:
        group, new = set[int](), {left.pop()}
        while new:
            group |= new
            new = {other for pid in new for other in peers[pid]} - group
        left -= group
        if len(group) > 1:
            found.append(tuple(sorted(group, key=_started)))
    return found


def _holders(
    pids: Iterable[int], ancestors: Mapping[int, Sequence[int]]
) -> dict[tuple[str, str, str], int]:
    """The process of each end of a connection, by its network and the two addresses.

    A forked process, such as a loader worker, has its parent's sockets as well.
    """
    sockets = {pid: set(inodes(pid)) for pid in pids}
    own: dict[str, int] = {}
    for pid, some in sockets.items():
        inherited = set[str]().union(*(sockets.get(one, set()) for one in ancestors[pid]))
        own |= dict.fromkeys(some - inherited, pid)
    networks = {network(pid): pid for pid in sockets}
    return {
        (net, words[1], words[2]): own[words[9]]
        for net, pid in networks.items()
        for words in tcp_rows(pid)
        if words[3] == ESTABLISHED and words[9] in own
    }


def _started(pid: int) -> tuple[float, int]:
    try:
        return psutil.Process(pid).create_time(), pid
    except psutil.Error:
        return float("inf"), pid
