"""`ip addr`: the network interfaces and their addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ddoctor.evidence.network import Address, Interface, InterfaceKind, Network, ResolvedName
from ddoctor.evidence.section import Unseen
from ddoctor.evidence.software import Environment
from ddoctor.reading.machine.kind import Kind

HEAD = re.compile(
    r"^\d{1,6}: (?P<name>[^\s:@]{1,20})(?:@(?P<link>[^\s:]{1,20}))?: "
    r"<(?P<flags>[A-Z0-9_,-]{0,200})> mtu (?P<mtu>\d{1,9}) "
)
LINK = re.compile(r"^ +link/(?P<kind>\w{1,20})")
ADDRESS = re.compile(
    r"^ +inet6? (?P<address>[\da-fA-F.:]{2,45})(?: peer [\da-fA-F.:]{2,45})?/(?P<prefix>\d{1,3}) "
)
LINKS: dict[str, InterfaceKind] = {
    "loopback": "loopback",
    "infiniband": "infiniband",
    "none": "tunnel",
    "ppp": "tunnel",
    "sit": "tunnel",
    "ipip": "tunnel",
    "gre": "tunnel",
    "tunnel6": "tunnel",
}
# As Docker, libvirt, Kubernetes and the kernel name them.
NAMES: dict[str, InterfaceKind] = {
    "docker": "local-bridge",
    "virbr": "local-bridge",
    "br-": "local-bridge",
    "cni": "local-bridge",
    "veth": "veth",
    "cali": "veth",
    "bond": "bond",
    "team": "bond",
    "wl": "wireless",
    "tun": "tunnel",
    "flannel": "tunnel",
    "vxlan": "tunnel",
    "dummy": "virtual",
    "ifb": "virtual",
}


def _read(lines: Sequence[str]) -> Iterator[Network]:
    rows: list[dict[str, Any]] = []
    for line in lines:
        if head := HEAD.match(line):
            flags = head["flags"].split(",")
            rows.append(
                {
                    "name": head["name"],
                    "kind": kind_of(head["name"], head["link"] or ""),
                    "up": "UP" in flags,
                    # The carrier: the kernel's IFF_RUNNING, which ip does not print.
                    "running": "UP" in flags and "LOWER_UP" in flags,
                    "mtu": int(head["mtu"]),
                    "addresses": [],
                }
            )
        elif link := LINK.match(line):
            rows[-1]["kind"] = LINKS.get(link["kind"], rows[-1]["kind"])
        elif found := ADDRESS.match(line):
            own = Address(address=found["address"], prefix=int(found["prefix"]))
            rows[-1]["addresses"].append(own)
    yield from network_of(rows, "ip addr")


def network_of(rows: Sequence[Mapping[str, Any]], command: str) -> Iterator[Network]:
    """The interfaces with these fields, which a command printed.

    Without the loopback, which each host has, it was asked for one interface.
    """
    if all(row["kind"] != "loopback" for row in rows):
        return
    yield Network(
        interfaces=tuple(Interface(**{**row, "addresses": (*row["addresses"],)}) for row in rows),
        own_name=ResolvedName(name=""),
        unseen=(
            Unseen(what="the address of the host's own name", why=f"{command} does not print it"),
        ),
    )


def kind_of(name: str, link: str = "") -> InterfaceKind:
    """The type of an interface by its name, and by its lower interface."""
    for beginning, kind in NAMES.items():
        if name.startswith(beginning):
            return kind
    # The other end of a container's interface is in another namespace: ip knows only its number.
    return "veth" if re.fullmatch(r"if\d+", link) else "vlan" if link else "ethernet"


def with_settings(network: Network, environment: Environment) -> Network:
    """The network with the variables that select interfaces."""
    values = {one.name: one.value for one in environment.variables}
    return replace(
        network,
        nccl_socket_ifname=values.get("NCCL_SOCKET_IFNAME"),
        nccl_socket_family=values.get("NCCL_SOCKET_FAMILY"),
        nccl_comm_id=values.get("NCCL_COMM_ID"),
        gloo_socket_ifname=values.get("GLOO_SOCKET_IFNAME"),
    )


KIND = Kind(
    name="ip addr",
    holds=("> mtu",),
    begins=HEAD,
    goes_on=re.compile(rf"{HEAD.pattern}|^ {{2,}}\S"),
    read=_read,
    fewest=2,
)
