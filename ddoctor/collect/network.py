"""Interfaces, routes and names, from the kernel and the host's resolver."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from threading import Thread
from typing import TypeVar

import psutil

from ddoctor.collect.environment import in_force
from ddoctor.evidence.network import Address, Interface, InterfaceKind, Network, ResolvedName, Route
from ddoctor.evidence.section import Unseen
from ddoctor.proc.files import text

T = TypeVar("T")

NAME_LIMIT_SECONDS = 4.0
"""A dead name server must not cost the whole section; glibc alone waits 5 s for each."""
NO_ANSWER = f"no answer within {NAME_LIMIT_SECONDS:.0f} s"

# From linux/sockios.h, linux/ethtool.h, linux/if_arp.h and linux/route.h.
SIOCGIFHWADDR, SIOCETHTOOL, ETHTOOL_GDRVINFO = 0x8927, 0x8946, 3
ARPHRD_INFINIBAND, ARPHRD_LOOPBACK = 32, 772
RTF_UP, RTF_REJECT = 0x1, 0x200

KINDS: Mapping[str, InterfaceKind] = {
    "bonding": "bond",
    "team": "bond",
    "802.1Q VLAN Support": "vlan",
    "macvlan": "vlan",
    "ipvlan": "vlan",
    "veth": "veth",
    "tun": "tunnel",
    "vxlan": "tunnel",
    "geneve": "tunnel",
    "wireguard": "tunnel",
    "dummy": "virtual",
    "ifb": "virtual",
    "": "virtual",
}
"""By the name that a driver gives itself (ethtool -i); the drivers of cards are not listed."""

_Row = tuple[int, str, str, IPv4Address | IPv6Address, int]
"""Metric, interface, destination with its mask (hexadecimal), gateway and flags of a route."""

LEADING_NOWHERE = ("veth", "tun", "dummy")
"""Drivers of bridge ports behind which there are only containers and virtual machines."""


def network() -> Network:
    """Interfaces, the default route, the host name, and the variables that select interfaces."""
    settings = {name: value for name, (_, value) in in_force().items()}
    announced = bounded(socket.getfqdn)
    return Network(
        interfaces=tuple(interfaces()),
        default_route=default_route(),
        own_name=resolve(socket.gethostname()),
        announced_name=announced or "",
        nccl_socket_ifname=settings.get("NCCL_SOCKET_IFNAME"),
        nccl_socket_family=settings.get("NCCL_SOCKET_FAMILY"),
        nccl_comm_id=settings.get("NCCL_COMM_ID"),
        gloo_socket_ifname=settings.get("GLOO_SOCKET_IFNAME"),
        unseen=() if announced else (Unseen(what="full host name", why=NO_ANSWER),),
    )


def interfaces() -> Iterator[Interface]:
    """Every interface, in the order in which the kernel lists their addresses."""
    states = psutil.net_if_stats()
    addresses = psutil.net_if_addrs()
    # A tunnel without any address has no row of its own among the addresses.
    for name in dict.fromkeys((*addresses, *states)):
        if (state := states.get(name)) is None:
            continue
        rows = addresses.get(name, [])
        flags = state.flags.split(",")
        yield Interface(
            name=name,
            kind=_kind(name),
            up="up" in flags,
            running="running" in flags,
            addresses=tuple(
                Address(address=bare, prefix=_prefix(bare, row.netmask))
                for row in rows
                if row.family in (socket.AF_INET, socket.AF_INET6)
                for bare in (row.address.partition("%")[0],)
            ),
            speed=state.speed or None,
            mtu=state.mtu,
        )


def default_route() -> Route | None:
    """The default route of the main table with the lowest metric, IPv4 before IPv6."""
    for rows in (_ipv4_routes(), _ipv6_routes()):
        defaults = (row for row in rows if int(row[2], 16) == 0)
        usable = [row for row in defaults if row[4] & RTF_UP and not row[4] & RTF_REJECT]
        if usable:
            _, interface, _, via, _ = min(usable, key=lambda row: row[0])
            return Route(to="default", interface=interface, gateway=str(via) if int(via) else "")
    return None


def route_to(address: str, known: tuple[Interface, ...]) -> Route | None:
    """The kernel's route to an address; no packet is sent."""
    source = own_address(address).partition("%")[0]
    for interface in known:
        if source in (own.address for own in interface.addresses):
            return Route(to=address, interface=interface.name, source=source)
    return None


def own_address(towards: str) -> str:
    """The source address of packets from this host to that address; empty: no route."""
    try:
        rows = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    for family, kind, protocol, _, address in rows:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            # Connecting a datagram socket sends nothing: the kernel only looks up the route.
            probe.connect(address)
            return str(probe.getsockname()[0])
    return ""


def resolve(name: str) -> ResolvedName:
    """The resolver's answer for a name, within a limit."""

    def look_up() -> ResolvedName:
        try:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return ResolvedName(name=name, error=getattr(error, "strerror", "") or str(error))
        found = dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows)
        return ResolvedName(name=name, addresses=tuple(found))

    return bounded(look_up) or ResolvedName(name=name, error=NO_ANSWER)


def bounded(look: Callable[[], T]) -> T | None:
    """A resolver's answer; None if there is none within the limit."""
    answers: list[T] = []

    def ask() -> None:
        # A name that no resolver takes, as too long a one, has no answer either.
        with suppress(UnicodeError):
            answers.append(look())

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(NAME_LIMIT_SECONDS)
    return answers[0] if answers else None


def _kind(name: str) -> InterfaceKind:
    folder = Path("/sys/class/net", name)
    hardware, driver = _hardware(name), _driver(name)
    if hardware == ARPHRD_LOOPBACK:
        return "loopback"
    if driver == "bridge":
        ports = folder / "brif"
        local = ports.is_dir() and all(
            _driver(port.name) in LEADING_NOWHERE for port in ports.iterdir()
        )
        return "local-bridge" if local else "bridge"
    if hardware == ARPHRD_INFINIBAND:
        return "infiniband"
    if (folder / "wireless").is_dir():
        return "wireless"
    return KINDS.get(driver, "ethernet")


def _hardware(name: str) -> int | None:
    """The ARPHRD_… number of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
        except OSError:
            return None
    return int.from_bytes(answer[16:18], sys.byteorder)


def _driver(name: str) -> str:
    """The driver's name in ``ethtool -i``; empty: not reported."""
    answer = array.array("B", struct.pack("I192x", ETHTOOL_GDRVINFO))
    request = struct.pack("16sP16x", name.encode(), answer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)
        except OSError:
            return ""
    return answer.tobytes()[4:36].partition(b"\0")[0].decode(errors="replace")


def _prefix(address: str, netmask: str | None) -> int:
    version = ip_address(address).version
    if not netmask:
        return 32 if version == 4 else 128
    if version == 4:
        return ip_network(f"0.0.0.0/{netmask}").prefixlen
    return int(IPv6Address(netmask)).bit_count()


def _ipv4_routes() -> Iterator[_Row]:
    for line in text(Path("/proc/net/route")).splitlines()[1:]:
        interface, to, gateway, flags, _, _, metric, mask, *_ = line.split()
        via = IPv4Address(int(gateway, 16).to_bytes(4, sys.byteorder))
        yield int(metric), interface, to + mask, via, int(flags, 16)


def _ipv6_routes() -> Iterator[_Row]:
    for line in text(Path("/proc/net/ipv6_route")).splitlines():
        to, length, _, _, gateway, metric, _, _, flags, interface = line.split()
        yield int(metric, 16), interface, to + length, IPv6Address(int(gateway, 16)), int(flags, 16)


COLLECTORS = (network,)
