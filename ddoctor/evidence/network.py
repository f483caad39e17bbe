"""The network between nodes: interfaces, names, RDMA devices, and the rendezvous."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address, ip_interface
from typing import Literal

from ddoctor.evidence.section import Part, Section

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

    def __post_init__(self) -> None:
        ip_interface(f"{self.address}/{self.prefix}")


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
    """Maximum packet size in bytes; 0: not reported."""

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


class Route(Part, frozen=True, kw_only=True):
    """The kernel's route to an address."""

    to: str
    """An IP address, or ``default``."""
    interface: str
    gateway: str = ""
    source: str = ""


class ResolvedName(Part, frozen=True, kw_only=True):
    """A name as the host's resolver answers it."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    """The resolver's error message; empty: it resolved."""

    def __post_init__(self) -> None:
        for address in self.addresses:
            ip_address(address)


class Network(Section, frozen=True, kw_only=True):
    """Interfaces, default route and host name, and the variables in force for NCCL and gloo."""

    commands = ("doctor", "probe", "diagnose")

    interfaces: tuple[Interface, ...]
    """In the kernel's order of addresses."""
    default_route: Route | None = None
    own_name: ResolvedName
    """The name from gethostname(); gloo binds to its address. Without a name: not seen."""
    announced_name: str = ""
    """The name from getfqdn(); torchrun's c10d rendezvous announces it to the other nodes."""
    nccl_socket_ifname: str | None = None
    nccl_socket_family: str | None = None
    nccl_comm_id: str | None = None
    gloo_socket_ifname: str | None = None

    def interface(self, name: str) -> Interface | None:
        """The interface of that name; None: there is none."""
        return next((one for one in self.interfaces if one.name == name), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The IP addresses of all interfaces."""
        return tuple(one.address for card in self.interfaces for one in card.addresses)

    def has(self, endpoint: str) -> bool | None:
        """Whether an IP address, with or without a port, is one of this host; None: it is none."""
        for text in (endpoint, endpoint.rpartition(":")[0].strip("[]")):
            with suppress(ValueError):
                return ip_address(text) in map(ip_address, self.addresses)
        return None

    def facing(self, route: Route | None = None) -> Interface | None:
        """The interface to other nodes: of this route, else the default one, else the first fit."""
        routed = [self.interface(way.interface) for way in (route, self.default_route) if way]
        away = [one for one in self.interfaces if not one.stays_here]
        return next((one for one in (*routed, *away) if one is not None and one.usable), None)


class PortHolder(Part, frozen=True, kw_only=True):
    """The process that listens on a port."""

    pid: int
    user: str = ""
    command: str = ""


class Rendezvous(Section, frozen=True, kw_only=True):
    """The rendezvous of the ranks, from the environment."""

    master: ResolvedName | None = None
    """MASTER_ADDR; None: not set."""
    master_here: bool
    """Whether MASTER_ADDR resolves to this host, or is not set."""
    master_route: Route | None = None
    """The route to MASTER_ADDR on another host."""
    port: int
    port_from: Literal["MASTER_PORT", "default"]
    port_free: bool | None = None
    """None: not tried, because the store is on another host or for a reason in ``unseen``."""
    port_holder: PortHolder | None = None
    """The process on the port; None: the port is free, or the process is invisible from here."""
    other_port: int | None = None
    """Another port that was free during the collection."""
    several_nodes: str = ""
    """Evidence that the run spans nodes, say ``SLURM_NNODES=4``; empty: none."""


class Gid(Part, frozen=True, kw_only=True):
    """One row of a port's GID table."""

    index: int
    gid: str
    kind: Literal["IB", "RoCE v1", "RoCE v2"]
    ipv4: str | None = None
    """The IPv4 address that a RoCE GID carries."""
    interface: str = ""


class RdmaPort(Part, frozen=True, kw_only=True):
    """One port of an RDMA device."""

    number: int
    state: str
    """State in sysfs: DOWN, INIT, ARMED, ACTIVE, …"""
    physical_state: str = ""
    """Physical state in sysfs: LinkUp, Polling, Disabled, …"""
    rate: float | None = None
    """Gbit/s."""
    link_layer: str = ""
    """InfiniBand or Ethernet."""
    interface: str = ""
    """The network interface on the same port."""
    gids: tuple[Gid, ...] | None = None


class RdmaDevice(Part, frozen=True, kw_only=True):
    """One RDMA device (HCA) of /sys/class/infiniband."""

    name: str
    """Device name, say mlx5_0."""
    bus_id: str = ""
    """Bus id of its PCI device, say 0000:1a:00.0."""
    driver: str = ""
    """Kernel driver of the PCI device: mlx5_core, bnxt_en, efa, irdma, …"""
    numa_node: int | None = None
    board: str = ""
    """The manufacturer's board id, say MT_0000000838."""
    firmware: str = ""
    """Firmware version, say 28.39.1002."""
    ports: tuple[RdmaPort, ...] = ()

    @property
    def is_hardware(self) -> bool:
        """Whether it is a card, and no soft RoCE."""
        return bool(self.bus_id or self.board)

    @property
    def active(self) -> bool:
        """Whether any port can carry traffic."""
        return any(port.state == "ACTIVE" for port in self.ports)


class VerbsNode(Part, frozen=True, kw_only=True):
    """A device node /dev/infiniband/uverbs*."""

    path: str
    refused: str = ""
    """Why this user cannot open it for reading and writing; empty: the user can."""


class Rdma(Section, frozen=True, kw_only=True):
    """RDMA devices, whether this user's processes can use them, and NCCL's variables in force."""

    commands = ("doctor", "probe", "diagnose")

    devices: tuple[RdmaDevice, ...] = ()
    verbs_nodes: tuple[VerbsNode, ...] = ()
    libibverbs: str | None = None
    """The library that NCCL would load; None: the dynamic loader finds none."""
    verbs_devices: tuple[str, ...] | None = None
    """The devices that libibverbs offers to NCCL; None: the query failed."""
    net_plugin: str | None = None
    """The network plug-in that NCCL would load, such as EFA's; None: not found."""
    net_plugin_aside: str | None = None
    """EFA's plug-in at its installation path, whether or not the dynamic loader searches there."""
    peer_memory: str | None = None
    """The loaded peer memory client (nvidia_peermem, nv_mem, nv_mem_nc); None: none."""
    dma_buf: bool | None = None
    """Whether kernel and driver can export GPU memory as DMA-BUF; None: not known."""
    dma_buf_reason: str = ""
    nccl_ib_hca: str | None = None
    nccl_ib_gid_index: str | None = None
    nccl_net_plugin: str | None = None

    @property
    def between_nodes(self) -> bool:
        """Whether it has InfiniBand or EFA, which exist for several nodes, unlike RoCE cards."""
        return any(
            device.driver == "efa" or any(port.link_layer == "InfiniBand" for port in device.ports)
            for device in self.fabric
        )

    @property
    def fabric(self) -> tuple[RdmaDevice, ...]:
        """Hardware devices with a port that can carry traffic, without soft RoCE."""
        return tuple(device for device in self.devices if device.active and device.is_hardware)
