"""The hosts of a run meet over a store before any launcher is started, and agree on its numbers."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import msgspec

from ddoctor.cluster.endpoint import Endpoint, resolved
from ddoctor.cluster.reachability import ATTEMPT_SECONDS, attempt, attempts, listen, own_address
from ddoctor.cluster.store import CONNECT_EVERY_SECONDS, ClusterStore, RankInfo, StoreLost, connect
from ddoctor.errors import DoctorError
from ddoctor.evidence.joining import HostCaller, HostJoining, Reach
from ddoctor.evidence.section import Section

TICK_SECONDS = 0.2
# All was said; hosts that were started together come within it.
SETTLE_SECONDS = 10.0
# Connections are tried for three seconds, all at once.
TRIAL_SECONDS = 10.0

ROLL = "roll"
TRIAL = "trial"
VERDICT = "verdict"
HEARD = "heard"


class JoiningHost(RankInfo, frozen=True, kw_only=True):
    """What a host says of itself; its rank is the order in which it called, from 0."""

    node_rank: int | None
    endpoint_addresses: tuple[str, ...]


class RendezvousResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the meeting."""

    node_ranks: Mapping[str, int] = {}
    """By the order in which the hosts called."""
    refusal: str = ""


class HostsMissing(Exception):
    """The hosts did not come together; the sections say how, as seen from this one."""

    def __init__(self, *sections: Section, first: bool) -> None:
        super().__init__()
        self.sections = sections
        self.first = first
        """It is the host of the endpoint, which speaks for those that came."""


def gather(meeting: Endpoint) -> int:
    """Meet the other hosts; the number of this one. The port is free again afterwards.

    Raises:
        Apart: hosts are missing, or cannot be reached.
        DoctorError: what the hosts were told makes no run; or another host has the report.
    """
    _load_torch()
    try:
        return _lead(meeting) if meeting.host_it else _follow(meeting)
    except StoreLost as error:
        raise DoctorError(str(error)) from error


def _load_torch() -> None:
    """With its warnings off: it shows its stack for each connection that ends."""
    name = "TORCH_CPP_LOG_LEVEL"
    told = os.environ.get(name)
    os.environ.setdefault(name, "ERROR")
    import torch  # noqa: F401

    # It has been read, and the ranks are not to inherit it.
    if told is None:
        del os.environ[name]


def _lead(meeting: Endpoint) -> int:
    try:
        # By its own name a host may not even reach itself.
        fleet = _open("localhost", meeting, host_it=True, limit=meeting.limit)
    except StoreLost as error:
        raise DoctorError(
            f"port {meeting.port} cannot be opened here: `ss -ltnp 'sport = :{meeting.port}'` "
            f"shows who has it, or take another one on all hosts ({error})"
        ) from error
    me = _call(fleet, meeting)
    callers = _wait(fleet, meeting)
    sizes = {one.world_size for one in callers}
    if len(sizes) == 1 and len(callers) >= meeting.hosts:
        numbers = _numbers(callers, me, meeting)
        verdict = RendezvousResult(
            node_ranks=numbers, refusal="" if numbers else _twice(callers, meeting.hosts)
        )
        _close(fleet, verdict, len(callers))
        if not numbers:
            raise DoctorError(verdict.refusal)
        return numbers[str(me.rank)]
    reaches = _try_ways(fleet, me, callers)
    names = ", ".join(sorted(one.host for one in callers))
    if len(sizes) == 1:
        what = f"{len(callers)} of {meeting.hosts} hosts came to {meeting.endpoint}: {names}"
    else:
        what = f"the hosts were given different --nnodes ({_listed(sorted(sizes))})"
    _close(fleet, RendezvousResult(refusal=f"{what}; the report is on {me.host}"), len(callers))
    raise HostsMissing(_joining(meeting, me, callers), *reaches, first=True)


def _follow(meeting: Endpoint) -> int:
    fleet = _connect(meeting)
    me = _call(fleet, meeting)
    tried = False
    # The endpoint's host was there before, so its own limit ends before this.
    deadline = time.monotonic() + meeting.limit + TRIAL_SECONDS + ATTEMPT_SECONDS
    while (verdict := fleet.hear(VERDICT, RendezvousResult)) is None:
        peers = None if tried else fleet.hear(TRIAL, tuple[JoiningHost, ...])
        if peers is not None:
            fleet.tell(f"reach/{me.rank}", Reach(host=me.host, attempts=attempts(me, peers)))
            tried = True
        elif time.monotonic() > deadline:
            raise DoctorError(
                f"{meeting.endpoint} took the call and did not decide within {meeting.limit:.0f} s:"
                " look at the output there, and give all hosts the same --join-timeout"
            )
        else:
            time.sleep(TICK_SECONDS)
    fleet.count(HEARD)
    if verdict.refusal:
        raise DoctorError(verdict.refusal)
    number = verdict.node_ranks.get(str(me.rank))
    if number is None:
        raise DoctorError(
            f"--nnodes is {meeting.hosts}, and as many hosts came to {meeting.endpoint} before "
            "this one: start fewer, or give all of them the number"
        )
    return number


def _connect(meeting: Endpoint) -> ClusterStore:
    """Knock until somebody opens: torch's own client logs each failure, and not why."""
    deadline = time.monotonic() + meeting.limit
    while True:
        left = deadline - time.monotonic()
        patience = max(1.0, min(ATTEMPT_SECONDS, left))
        way = attempt(meeting.address, meeting.address, meeting.port, patience)
        if way.outcome == "connected":
            break
        if left < CONNECT_EVERY_SECONDS:
            raise HostsMissing(
                HostJoining(
                    host=socket.gethostname(),
                    endpoint=meeting.endpoint,
                    limit=meeting.limit,
                    expected=meeting.hosts,
                    way=way,
                ),
                first=False,
            )
        time.sleep(CONNECT_EVERY_SECONDS)
    try:
        return _open(meeting.address, meeting, host_it=False, limit=max(ATTEMPT_SECONDS, left))
    except StoreLost as error:
        raise DoctorError(
            f"{meeting.endpoint} takes connections and is not where the hosts meet: there, "
            f"`ss -ltnp 'sport = :{meeting.port}'` shows who has the port"
        ) from error


def _open(address: str, meeting: Endpoint, *, host_it: bool, limit: float) -> ClusterStore:
    prefix = f"door/{meeting.run}"
    return connect(address, meeting.port, host_it=host_it, limit=limit, prefix=prefix)


def _call(fleet: ClusterStore, meeting: Endpoint) -> JoiningHost:
    """Say who and where this host is."""
    address = own_address(meeting.address)
    me = JoiningHost(
        rank=fleet.count(ROLL) - 1,
        local_rank=0,
        local_size=1,
        world_size=meeting.hosts,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("ddoctor"),
        address=address,
        port=listen(address) if address else 0,
        node_rank=meeting.node_rank,
        endpoint_addresses=resolved(meeting.address),
    )
    fleet.tell(f"caller/{me.rank}", me)
    return me


def _wait(fleet: ClusterStore, meeting: Endpoint) -> list[JoiningHost]:
    """All that come, in the order of their calls, until there are enough or the limit is over."""
    deadline = time.monotonic() + meeting.limit
    disagreed = False
    while True:
        keys = [f"caller/{number}" for number in range(fleet.count(ROLL, 0))]
        callers = list(fleet.hear_all(keys, JoiningHost).values())
        sizes = {one.world_size for one in callers}
        if len(sizes) > 1 and not disagreed:
            disagreed = True
            deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        if len(callers) >= max(sizes) or time.monotonic() > deadline:
            return sorted(callers, key=lambda one: one.rank)
        time.sleep(TICK_SECONDS)


def _numbers(callers: Sequence[JoiningHost], me: JoiningHost, meeting: Endpoint) -> dict[str, int]:
    """Node ranks: those that were given to all, or the order of the names after the endpoint's
    host; empty where two hosts were given the same."""
    first = callers[: meeting.hosts]
    given = [one.node_rank for one in first if one.node_rank is not None]
    if len(given) == len(first) and me.node_rank == 0:
        numbers = {str(one.rank): one.node_rank for one in first if one.node_rank is not None}
        return numbers if len(set(given)) == len(given) else {}
    ordered = sorted(first, key=lambda one: (one.rank != me.rank, one.host, one.rank))
    return {str(one.rank): number for number, one in enumerate(ordered)}


def _twice(callers: Sequence[JoiningHost], hosts: int) -> str:
    times = Counter(one.node_rank for one in callers[:hosts])
    number = next(rank for rank, count in times.items() if count > 1)
    names = ", ".join(sorted(one.host for one in callers if one.node_rank == number))
    return f"--node-rank {number} was given to {names}: give each host a number of its own"


def _try_ways(
    fleet: ClusterStore, me: JoiningHost, callers: Sequence[JoiningHost]
) -> tuple[Reach, ...]:
    """Have those that came try one another's ports."""
    fleet.tell(TRIAL, callers)
    mine = Reach(host=me.host, attempts=attempts(me, callers))
    keys = [f"reach/{one.rank}" for one in callers if one.rank != me.rank]
    deadline = time.monotonic() + TRIAL_SECONDS
    while len(told := fleet.hear_all(keys, Reach)) < len(keys) and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS)
    return (mine, *told.values())


def _close(fleet: ClusterStore, verdict: RendezvousResult, callers: int) -> None:
    """Tell the verdict, and keep the store open until all others have heard it."""
    fleet.tell(VERDICT, verdict)
    deadline = time.monotonic() + TRIAL_SECONDS
    while fleet.count(HEARD, 0) < callers - 1 and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS)


def _joining(meeting: Endpoint, me: JoiningHost, callers: Sequence[JoiningHost]) -> HostJoining:
    return HostJoining(
        host=me.host,
        endpoint=meeting.endpoint,
        limit=meeting.limit,
        expected=meeting.hosts,
        came=tuple(one.host for one in callers),
        expected_elsewhere=tuple(sorted({one.world_size for one in callers} - {meeting.hosts})),
        callers=tuple(
            HostCaller(
                host=one.host,
                node_rank=one.node_rank,
                expected=one.world_size,
                address=one.address,
                endpoint_addresses=one.endpoint_addresses,
            )
            for one in callers
        ),
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
