"""Which network interfaces NCCL and gloo use, by their own rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface

from ddoctor.evidence.network import Address, Interface, Network


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The interfaces that a library uses for its sockets, in its order, and the rule."""

    interfaces: tuple[str, ...]
    rule: str


# MAX_IFS of NCCL's src/include/socket.h and net_socket.cc.
NCCL_MAXIMUM = 16


def nccl_choice(network: Network) -> Choice:
    """The interfaces that NCCL uses: the first for bootstrap, all for its socket transport.

    Source: ncclFindInterfaces in src/misc/socket.cc and ncclOsFindInterfaces in src/os/linux.cc,
    NCCL 2.30.7. Before 2.28 NCCL used virbr like any other, and before 2.29 it also used an
    interface without carrier.
    """
    interfaces, family = network.interfaces, network.nccl_socket_family
    ifname, comm_id = network.nccl_socket_ifname, network.nccl_comm_id
    if ifname is not None and len(ifname) > 1:
        found = _matching(interfaces, ifname, family)
        return Choice(interfaces=found, rule=f"NCCL_SOCKET_IFNAME={ifname}")
    ways = (
        ("names that begin with ib come first", _matching(interfaces, "ib", family)),
        (f"it is in the subnet of NCCL_COMM_ID={comm_id}", _in_subnet(interfaces, comm_id)),
        ("all but docker*, lo* and virbr*", _matching(interfaces, "^docker,lo,virbr", family)),
        *(
            (f"only {prefix}* is up and has an address", _matching(interfaces, prefix, family))
            for prefix in ("docker", "lo", "virbr")
        ),
    )
    first = (Choice(interfaces=found, rule=rule) for rule, found in ways if found)
    return next(first, Choice(interfaces=(), rule="no interface is up and has an address"))


def gloo_choice(network: Network) -> Choice:
    """The interfaces that torch's gloo binds to.

    Source: createDefaultDevice in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp and
    gloo/transport/tcp/device.cc.
    """
    interfaces, ifname = network.interfaces, network.gloo_socket_ifname
    if ifname is not None and len(ifname) > 1:
        with_address = {one.name for one in interfaces if one.addresses}
        found = tuple(name for name in ifname.split(",") if name in with_address)
        return Choice(interfaces=found, rule=f"GLOO_SOCKET_IFNAME={ifname}")
    loopback = tuple(one.name for one in interfaces if one.kind == "loopback")[:1]
    for address in network.own_name.addresses:
        if ip_address(address).is_loopback:
            owners = loopback
        else:
            owners = tuple(
                one.name for one in interfaces if address in (its.address for its in one.addresses)
            )
        if owners:
            return Choice(interfaces=owners[:1], rule=f"the host's own name resolves to {address}")
    return Choice(interfaces=loopback, rule="the host's own name resolves to none of its addresses")


def names_of(pattern: str) -> tuple[str, ...]:
    """The names in a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA, without ^, = and ports."""
    entries = pattern.removeprefix("^").removeprefix("=").split(",")
    return tuple(name for entry in entries if (name := entry.partition(":")[0]))


def matches(pattern: str, name: str) -> bool:
    """Whether NCCL accepts a name: a list of prefixes, ``=`` whole names, ``^`` excluded names.

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


def _in_subnet(interfaces: tuple[Interface, ...], comm_id: str | None) -> tuple[str, ...]:
    host = (comm_id or "").rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        wanted = ip_address(host)
    except ValueError:
        return ()
    for interface, address in _in_order(interfaces):
        if wanted in ip_interface(f"{address.address}/{address.prefix}").network:
            return (interface.name,)
    return ()
