"""TCP bandwidth from host to host, over each interface that all of them have."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Thread

from ddoctor.collect.network import interfaces
from ddoctor.evidence.cluster_probes import InterfaceRate, InterfaceRates
from ddoctor.probing.world import ProbeWorld, Skip, by_host

USES_DEVICE = False
SPANS_HOSTS = True

# In turns over the interfaces, so that a busy moment is not one interface's.
REPEATS = 3
SECONDS = 0.3
# A connection that is made at all is made in well under a second.
ANSWER_SECONDS = 3.0
CHUNK = bytes(2**20)


def measure(world: ProbeWorld) -> InterfaceRates | None:
    """The first rank of every host sends to the next host, and receives from the previous one."""
    hosts = {ranks[0]: host for host, ranks in by_host(world.places()).items()}
    if len(hosts) < 2:
        raise Skip("there is only one host")
    told = world.gather(dict(_addresses()) if world.rank in hosts else {})
    addresses = {rank: told[rank] for rank in hosts}
    names = _shared(list(addresses.values()))
    if len(names) < 2:
        raise Skip("the hosts share fewer than two interface names: there is no choice")
    rows = []
    if world.rank in hosts:
        ring = list(hosts)
        place_in_ring = ring.index(world.rank)
        before, following = ring[place_in_ring - 1], ring[(place_in_ring + 1) % len(ring)]
        outcomes: dict[str, list[float | str]] = {name: [] for name in names}
        for repeat in range(REPEATS):
            for name in names:
                world.doing(f"TCP over {name}, repeat {repeat + 1}")
                here, there = addresses[world.rank][name], addresses[following][name]
                outcomes[name].append(_turn(world, f"{name}/{repeat}", here, following, there))
        rows = [(name, hosts[before], hosts[world.rank], outcomes[name]) for name in names]
    found = world.collect(rows)
    if world.rank > 0:
        return None
    return InterfaceRates(rates=tuple(_rate(*row) for some in found for row in some))


def _rate(
    interface: str, sender: str, receiver: str, outcomes: Sequence[float | str]
) -> InterfaceRate:
    errors = [one for one in outcomes if isinstance(one, str)]
    return InterfaceRate(
        interface=interface,
        sender=sender,
        receiver=receiver,
        rates=tuple(one for one in outcomes if not isinstance(one, str)),
        error=errors[-1] if errors else "",
    )


def _turn(world: ProbeWorld, turn: str, here: str, following: int, there: str) -> float | str:
    """Send to the next, receive from the previous: GB/s received, or the reason for none."""
    server = _listen(here)
    port = server.getsockname()[1] if server is not None else 0
    world.store.set(f"{turn}/{world.rank}", str(port))
    towards = int(world.store.get(f"{turn}/{following}"))
    if server is None:
        return f"cannot listen on {here}"
    with server:
        sending = Thread(target=_send, args=(here, there, towards), daemon=True)
        sending.start()
        outcome = _receive(server)
        sending.join()
    return outcome


def _listen(address: str) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError):
        server = socket.create_server((address, 0), family=family)
        server.settimeout(ANSWER_SECONDS)
        return server
    return None


def _send(here: str, there: str, port: int) -> None:
    """Send for ``SECONDS``; the receiver sees any error."""
    with (
        suppress(OSError),
        socket.create_connection((there, port), ANSWER_SECONDS, (here, 0)) as way,
    ):
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            way.sendall(CHUNK)


def _receive(server: socket.socket) -> float | str:
    """GB/s from the first byte to the last, which arrives after all buffered data."""
    buffer = bytearray(len(CHUNK))
    total, begin, last = 0, 0.0, 0.0
    try:
        way, _ = server.accept()
        with way:
            way.settimeout(ANSWER_SECONDS)
            while got := way.recv_into(buffer):
                last = time.perf_counter()
                # The first bytes only start the clock.
                if not begin:
                    begin = last
                else:
                    total += got
    except OSError as error:
        return str(error)
    return total / (last - begin) / 1e9 if last > begin else "nothing arrived"


def _addresses() -> Iterator[tuple[str, str]]:
    """The interfaces that may lead to other hosts, and the first address of each."""
    for one in interfaces():
        if one.usable and one.kind not in ("loopback", "local-bridge") and one.networks:
            routed = [its.address for its in one.addresses if not its.address.startswith("fe80:")]
            yield one.name, routed[0]


def _shared(hosts: Sequence[Mapping[str, str]]) -> list[str]:
    """The interface names that every host has, with different addresses."""
    counted = Counter(name for own in hosts for name in own)
    return [
        name
        for name in hosts[0]
        if counted[name] == len(hosts) and len({own[name] for own in hosts}) == len(hosts)
    ]
