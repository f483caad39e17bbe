"""Network interfaces and their addresses."""

from __future__ import annotations

from ipaddress import ip_interface
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
    """Type of the interface; local-bridge: without a physical port, as docker0, virbr0 and br-…."""
    up: bool
    """Whether the administrator switched it on (IFF_UP)."""
    running: bool
    """Whether it is up and has a link partner (IFF_RUNNING)."""
    addresses: tuple[Address, ...] = ()
    speed: int | None = None
    """Mbit/s; None: the driver does not report it."""
    mtu: int
    """Maximum packet size in bytes."""

    @property
    def usable(self) -> bool:
        """Whether a socket can use it."""
        return self.running and bool(self.addresses)

    @property
    def stays_here(self) -> bool:
        """Whether it connects to this host only, unless a route to another host uses it."""
        return self.kind in ("loopback", "local-bridge", "veth")

    @property
    def networks(self) -> frozenset[str]:
        """Its subnets, without the link-local ones, which every interface has."""
        own = (ip_interface(f"{one.address}/{one.prefix}") for one in self.addresses)
        return frozenset(str(one.network) for one in own if not one.is_link_local)
