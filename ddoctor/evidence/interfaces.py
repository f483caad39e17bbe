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
