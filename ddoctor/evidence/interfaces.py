"""Network interfaces, and which of them NCCL and gloo take by their own rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_interface
from typing import Literal

from ddoctor.evidence.section import Part

InterfaceKind = Literal[
    "ethernet",
    "infiniband",
    "wireless",
    "bond",
    "vlan",
    "bridge",
    "local-bridge",
    "veth",
    "tunnel",
    "loopback",
    "virtual",
]


class Address(Part, frozen=True, kw_only=True):
    """An IP address of an interface, without its zone."""

    address: str
    prefix: int


class Interface(Part, frozen=True, kw_only=True):
    """One network interface."""

    name: str
    kind: InterfaceKind
    """local-bridge: a bridge without a physical port, as docker0, virbr0 and br-… are."""
    up: bool
    """Switched on by the administrator (IFF_UP)."""
    running: bool
    """Up, and something answers at the other end (IFF_RUNNING)."""
    addresses: tuple[Address, ...] = ()
    speed: int | None = None
    """Mbit/s; None: the driver does not tell."""
    mtu: int

    @property
    def usable(self) -> bool:
        """Whether a socket could speak through it."""
        return self.running and bool(self.addresses)

    @property
    def stays_here(self) -> bool:
        """Whether what it joins is on this host alone, unless a route to elsewhere runs over it."""
        return self.kind in ("loopback", "local-bridge", "veth")

    @property
    def networks(self) -> frozenset[str]:
        """The subnets that it is in, without the link-local ones, which every interface has."""
        own = (ip_interface(f"{one.address}/{one.prefix}") for one in self.addresses)
        return frozenset(str(one.network) for one in own if not one.is_link_local)


class Choice(Part, frozen=True, kw_only=True):
    """The interfaces that a library takes for its sockets, in its order, and by which rule."""

    interfaces: tuple[str, ...]
    rule: str


# MAX_IFS of NCCL's src/include/socket.h and net_socket.cc.
NCCL_MAXIMUM = 16


def nccl_choice(
    interfaces: tuple[Interface, ...],
    *,
    ifname: str | None = None,
    comm_id: str | None = None,
    family: str | None = None,
) -> Choice:
    """What NCCL takes: bootstrap the first, its socket transport all of them.

    ``interfaces`` are in the kernel's order; the others are the values of NCCL_SOCKET_IFNAME,
    NCCL_COMM_ID and NCCL_SOCKET_FAMILY. Source: ncclFindInterfaces in src/misc/socket.cc and
    ncclOsFindInterfaces in src/os/linux.cc, NCCL 2.30.7. Before 2.28 virbr was like any other, and
    before 2.29 an interface without carrier was taken too.
    """
    if ifname is not None and len(ifname) > 1:
        found = _matching(interfaces, ifname, family)
        return Choice(interfaces=found, rule=f"NCCL_SOCKET_IFNAME={ifname}")
    if found := _matching(interfaces, "ib", family):
        return Choice(interfaces=found, rule="names that begin with ib come first")
    if comm_id is not None and (found := _in_subnet(interfaces, comm_id)):
        return Choice(interfaces=found, rule=f"it is in the subnet of NCCL_COMM_ID={comm_id}")
    if found := _matching(interfaces, "^docker,lo,virbr", family):
        return Choice(interfaces=found, rule="all but docker*, lo* and virbr*")
    for pattern in ("docker", "lo", "virbr"):
        if found := _matching(interfaces, pattern, family):
            return Choice(interfaces=found, rule=f"there is nothing better than {pattern}*")
    return Choice(interfaces=(), rule="no interface is up and has an address")


def gloo_choice(
    interfaces: tuple[Interface, ...],
    *,
    ifname: str | None = None,
    own_addresses: Iterable[str] = (),
) -> Choice:
    """What torch's gloo binds to.

    ``ifname`` is the value of GLOO_SOCKET_IFNAME, ``own_addresses`` what the own host name resolves
    to. Source: createDefaultDevice in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp and
    gloo/transport/tcp/device.cc.
    """
    if ifname is not None and len(ifname) > 1:
        with_address = {one.name for one in interfaces if one.addresses}
        found = tuple(name for name in ifname.split(",") if name in with_address)
        return Choice(interfaces=found, rule=f"GLOO_SOCKET_IFNAME={ifname}")
    loopback = tuple(one.name for one in interfaces if one.kind == "loopback")[:1]
    for address in own_addresses:
        if ip_address(address).is_loopback:
            owners = loopback
        else:
            owners = tuple(
                one.name for one in interfaces if address in (its.address for its in one.addresses)
            )
        if owners:
            return Choice(interfaces=owners[:1], rule=f"the own host name resolves to {address}")
    return Choice(interfaces=loopback, rule="the own host name resolves to no address of this host")


def names_of(pattern: str) -> tuple[str, ...]:
    """The names in a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA, without ^, = and ports."""
    entries = pattern.removeprefix("^").removeprefix("=").split(",")
    return tuple(name for entry in entries if (name := entry.partition(":")[0]))


def matches(pattern: str, name: str) -> bool:
    """Whether NCCL lets a name pass: a list of prefixes, ``=`` of whole names, ``^`` of neither.

    Source: parseStringList and matchIfList in NCCL's src/misc/utils.cc.
    """
    names = names_of(pattern)
    exact = pattern.removeprefix("^").startswith("=")
    listed = not names or any(name == one if exact else name.startswith(one) for one in names)
    return listed != pattern.startswith("^")


def _matching(
    interfaces: tuple[Interface, ...], pattern: str, family: str | None
) -> tuple[str, ...]:
    found = (
        interface.name
        for interface, address in _in_order(interfaces)
        if interface.running and matches(pattern, interface.name) and _is_of(address, family)
    )
    return tuple(dict.fromkeys(found))[:NCCL_MAXIMUM]


def _in_order(interfaces: tuple[Interface, ...]) -> Iterator[tuple[Interface, Address]]:
    """As getifaddrs lists them: every IPv4 address before the first IPv6 one."""
    for version in (4, 6):
        for interface in interfaces:
            for address in interface.addresses:
                if ip_address(address.address).version == version:
                    yield interface, address


def _is_of(address: Address, family: str | None) -> bool:
    ip = ip_address(address.address)
    if ip.version == 6 and ip.is_loopback:
        return False
    return {"AF_INET": 4, "AF_INET6": 6}.get(family or "", ip.version) == ip.version


def _in_subnet(interfaces: tuple[Interface, ...], comm_id: str) -> tuple[str, ...]:
    host = comm_id.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        wanted = ip_address(host)
    except ValueError:
        return ()
    for interface, address in _in_order(interfaces):
        if wanted in ip_interface(f"{address.address}/{address.prefix}").network:
            return (interface.name,)
    return ()
