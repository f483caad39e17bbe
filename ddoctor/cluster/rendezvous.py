"""Rendezvous of the hosts over a store, before any launcher starts; assigns node ranks."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ddoctor.cluster.endpoint import Endpoint, resolved
from ddoctor.cluster.reachability import ATTEMPT_SECONDS, attempt, attempts, listen
from ddoctor.cluster.store import (
    CONNECT_EVERY_SECONDS,
    JOINED,
    ClusterStore,
    RankInfo,
    StoreLost,
    connect,
    key,
)
from ddoctor.collect.network import own_address
from ddoctor.errors import DoctorError
from ddoctor.evidence.joining import Attempt, HostCaller, HostJoining, Reach
from ddoctor.evidence.section import Section

TICK_SECONDS = 0.2
# Hosts that start together join within this time.
SETTLE_SECONDS = 10.0
# All connections are tried at once, for three seconds.
TRIAL_SECONDS = 10.0

TRIAL = "trial"
RESULT = "result"
RECEIVED = "received"


class JoiningHost(RankInfo, frozen=True, kw_only=True):
    """A host that joins; its rank is its position in the order of joining, from 0."""

    node_rank: int | None
    endpoint_addresses: tuple[str, ...]


class RendezvousResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the rendezvous."""

    node_ranks: Mapping[int, int] = {}
    """Node rank by the position in the order of joining."""
    refusal: str = ""


class HostsMissing(Exception):
    """Hosts are missing; the sections hold what this host has seen of the others."""

    def __init__(self, *sections: Section, first: bool) -> None:
        super().__init__()
        self.sections = sections
        self.first = first
        """Whether this is the host of the endpoint, which reports for all hosts that joined."""


def gather(endpoint: Endpoint) -> int:
    """Wait for the other hosts; return the node rank of this one. The port is free afterwards.

    Raises:
        HostsMissing: hosts are missing or unreachable.
        DoctorError: the options of the hosts do not match, or another host has the report.
    """
    try:
        return _lead(endpoint) if endpoint.host_it else _follow(endpoint)
    except StoreLost as error:
        raise DoctorError(str(error)) from error


def _lead(endpoint: Endpoint) -> int:
    try:
        # A host may not reach itself by its own name.
        store = _open("localhost", endpoint, host_it=True, limit=endpoint.limit)
    except StoreLost as error:
        raise DoctorError(
            f"port {endpoint.port} cannot be opened here: `ss -ltnp 'sport = :{endpoint.port}'` "
            f"shows the process that uses it, or give another port on all hosts ({error})"
        ) from error
    me = _announce(store, endpoint)
    callers = _wait(store, endpoint)
    sizes = {one.world_size for one in callers}
    if len(sizes) == 1 and len(callers) >= endpoint.hosts:
        result = _result(callers[: endpoint.hosts], me)
        _close(store, result, len(callers))
        if result.refusal:
            raise DoctorError(result.refusal)
        return result.node_ranks[me.rank]
    reaches = _try_connections(store, me, callers)
    names = ", ".join(sorted(one.host for one in callers))
    if len(sizes) == 1:
        what = f"{len(callers)} of {endpoint.hosts} hosts joined at {endpoint}: {names}"
    else:
        what = f"the hosts have different values of --nnodes ({', '.join(map(str, sorted(sizes)))})"
    _close(store, RendezvousResult(refusal=f"{what}; the report is on {me.host}"), len(callers))
    raise HostsMissing(_joining(endpoint, callers), *reaches, first=True)


def _follow(endpoint: Endpoint) -> int:
    store = _connect(endpoint)
    me = _announce(store, endpoint)
    tried = False
    # The endpoint's host started earlier, so its limit ends before this one.
    deadline = time.monotonic() + endpoint.limit + TRIAL_SECONDS + ATTEMPT_SECONDS
    while (result := store.get(RESULT, RendezvousResult)) is None:
        peers = None if tried else store.get(TRIAL, tuple[JoiningHost, ...])
        if peers is not None:
            store.set(key("answer", me.rank), Reach(host=me.host, attempts=attempts(me, peers)))
            tried = True
        elif time.monotonic() > deadline:
            raise DoctorError(
                f"{endpoint} accepted the connection but sent no result within "
                f"{endpoint.limit:.0f} s: read the output there, and give all hosts the same "
                "--join-timeout"
            )
        else:
            time.sleep(TICK_SECONDS)
    store.add(RECEIVED)
    if result.refusal:
        raise DoctorError(result.refusal)
    number = result.node_ranks.get(me.rank)
    if number is None:
        raise DoctorError(
            f"--nnodes is {endpoint.hosts}, but {endpoint.hosts} other hosts joined at {endpoint} "
            "before this one: start fewer hosts, or raise --nnodes on all of them"
        )
    return number


def _connect(endpoint: Endpoint) -> ClusterStore:
    """Try until the endpoint opens; torch's client would log each failure without its cause."""
    deadline = time.monotonic() + endpoint.limit
    while True:
        left = deadline - time.monotonic()
        patience = max(1.0, min(ATTEMPT_SECONDS, left))
        way = attempt(endpoint.address, endpoint.address, endpoint.port, patience)
        if way.outcome == "connected":
            break
        if left < CONNECT_EVERY_SECONDS:
            raise HostsMissing(_joining(endpoint, way=way), first=False)
        time.sleep(CONNECT_EVERY_SECONDS)
    try:
        return _open(endpoint.address, endpoint, host_it=False, limit=max(ATTEMPT_SECONDS, left))
    except StoreLost as error:
        raise DoctorError(
            f"{endpoint} accepts connections, but another program listens there: on that host, "
            f"`ss -ltnp 'sport = :{endpoint.port}'` shows its process"
        ) from error


def _open(address: str, endpoint: Endpoint, *, host_it: bool, limit: float) -> ClusterStore:
    prefix = f"rendezvous/{endpoint.run}"
    return connect(address, endpoint.port, host_it=host_it, limit=limit, prefix=prefix)


def _announce(store: ClusterStore, endpoint: Endpoint) -> JoiningHost:
    """Announce this host to the others."""
    address = own_address(endpoint.address)
    me = JoiningHost(
        rank=store.add(JOINED) - 1,
        world_size=endpoint.hosts,
        address=address,
        port=listen(address) if address else 0,
        node_rank=endpoint.node_rank,
        endpoint_addresses=resolved(endpoint.address),
    )
    store.set(key("rank", me.rank), me)
    return me


def _wait(store: ClusterStore, endpoint: Endpoint) -> list[JoiningHost]:
    """The hosts in the order of joining, once all have joined or the limit is over."""
    deadline = time.monotonic() + endpoint.limit
    disagreed = False
    while True:
        keys = {number: key("rank", number) for number in range(store.add(JOINED, 0))}
        callers = list(store.get_all(keys, JoiningHost).values())
        sizes = {one.world_size for one in callers}
        if len(sizes) > 1 and not disagreed:
            disagreed = True
            deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        if len(callers) >= max(sizes) or time.monotonic() > deadline:
            return sorted(callers, key=lambda one: one.rank)
        time.sleep(TICK_SECONDS)


def _result(hosts: Sequence[JoiningHost], me: JoiningHost) -> RendezvousResult:
    """The node ranks, unless two hosts have the same --node-rank.

    If any host lacks --node-rank, the endpoint's host is 0, and the others follow by name.
    """
    given = {one.rank: one.node_rank for one in hosts if one.node_rank is not None}
    if len(given) < len(hosts) or me.node_rank != 0:
        ordered = sorted(hosts, key=lambda one: (one.rank != me.rank, one.host, one.rank))
        return RendezvousResult(node_ranks={one.rank: n for n, one in enumerate(ordered)})
    number, times = Counter(given.values()).most_common(1)[0]
    if times == 1:
        return RendezvousResult(node_ranks=given)
    names = ", ".join(sorted(one.host for one in hosts if one.node_rank == number))
    refusal = f"{names} have the same --node-rank {number}: give each host a different one"
    return RendezvousResult(refusal=refusal)


def _try_connections(
    store: ClusterStore, me: JoiningHost, callers: Sequence[JoiningHost]
) -> tuple[Reach, ...]:
    """Have the hosts that joined try to connect to each other."""
    store.set(TRIAL, callers)
    own = Reach(host=me.host, attempts=attempts(me, callers))
    keys = {one.rank: key("answer", one.rank) for one in callers if one.rank != me.rank}
    return (own, *store.wait_for(keys, Reach, seconds=TRIAL_SECONDS).values())


def _close(store: ClusterStore, result: RendezvousResult, callers: int) -> None:
    """Publish the result, and keep the store open until all other hosts have read it."""
    store.set(RESULT, result)
    store.wait_until(RECEIVED, callers - 1, seconds=TRIAL_SECONDS)


def _joining(
    endpoint: Endpoint, callers: Sequence[JoiningHost] = (), way: Attempt | None = None
) -> HostJoining:
    return HostJoining(
        host=socket.gethostname(),
        endpoint=str(endpoint),
        limit=endpoint.limit,
        expected=endpoint.hosts,
        way=way,
        came=tuple(one.host for one in callers),
        expected_elsewhere=tuple(sorted({one.world_size for one in callers} - {endpoint.hosts})),
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
