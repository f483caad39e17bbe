"""The ways between nodes: interfaces, names, RDMA devices, and where the ranks are to meet."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Part, Section

InterfaceKind = Literal[
    "ethernet",
    "infiniband",
    "bond",
    "vlan",
    "wireless",
    "loopback",
    "bridge",
    "container-bridge",
    "veth",
    "tunnel",
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
    up: bool
    """Switched on by the administrator (IFF_UP)."""
    carrier: bool | None = None
    """Something answers at the other end; None: the driver does not tell, or it is off."""
    addresses: tuple[Address, ...] = ()
    speed: int | None = None
    """Mbit/s; None: the driver does not tell."""
    mtu: int


class Route(Part, frozen=True, kw_only=True):
    """The way the kernel would take to an address."""

    to: str
    """An address, or ``default``."""
    interface: str
    gateway: str = ""
    source: str = ""
    """The own address that packets would carry."""


class Choice(Part, frozen=True, kw_only=True):
    """The interfaces that a library would take for its sockets, in its order, and by which rule."""

    interfaces: tuple[str, ...]
    rule: str


class ResolvedName(Part, frozen=True, kw_only=True):
    """What the host's resolver says about a name."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    """The resolver's own words; empty: it resolved."""


class Network(Section, frozen=True, kw_only=True):
    """Interfaces, routes and names of a host, and what NCCL and gloo would make of them."""

    interfaces: tuple[Interface, ...]
    default_route: Route | None = None
    nccl: Choice
    gloo: Choice
    own_name: ResolvedName
    """The name from gethostname(), which gloo binds to and torchrun announces."""
    nccl_socket_ifname: str | None = None
    """NCCL_SOCKET_IFNAME as set; None: not set."""
    gloo_socket_ifname: str | None = None
    """GLOO_SOCKET_IFNAME as set; None: not set."""


class PortHolder(Part, frozen=True, kw_only=True):
    """The process that listens on a port."""

    pid: int
    user: str = ""
    command: str = ""


class Rendezvous(Section, frozen=True, kw_only=True):
    """Where the ranks are to meet, as far as the environment tells."""

    master: ResolvedName | None = None
    """MASTER_ADDR; None: not set."""
    master_here: bool
    """MASTER_ADDR is an address of this host, or is not set."""
    master_route: Route | None = None
    """The way to MASTER_ADDR, when it is another host."""
    port: int
    port_from: Literal["MASTER_PORT", "default"]
    port_free: bool | None = None
    """None: not tried, because the store would be opened on another host."""
    port_holder: PortHolder | None = None
    """None: free, or the process cannot be seen from here."""
    other_port: int | None = None
    """A port that was free at the time of the look."""
    several_nodes: str = ""
    """What says that the run spans nodes, say ``SLURM_NNODES=4``; empty: nothing does."""


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
    """DOWN, INIT, ARMED, ACTIVE, … as sysfs names it."""
    physical_state: str = ""
    """LinkUp, Polling, Disabled, … as sysfs names it."""
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
    """Say mlx5_0."""
    bus_id: str = ""
    """Of the PCI device behind it, say 0000:1a:00.0."""
    driver: str = ""
    """Kernel driver of the PCI device: mlx5_core, bnxt_en, efa, irdma, …"""
    numa_node: int | None = None
    ports: tuple[RdmaPort, ...] = ()

    @property
    def active(self) -> bool:
        """Whether any port could carry traffic."""
        return any(port.state == "ACTIVE" for port in self.ports)


class Rdma(Section, frozen=True, kw_only=True):
    """RDMA devices of a host, and whether this user's processes could use them."""

    devices: tuple[RdmaDevice, ...] = ()
    uverbs: tuple[str, ...] = ()
    """Device nodes /dev/infiniband/uverbs* that there are."""
    uverbs_refused: tuple[str, ...] = ()
    """Those of them that this user may not open for reading and writing."""
    libibverbs: str | None = None
    """The library that NCCL would load; None: the loader finds none."""
    ofi_plugin: str | None = None
    """The NCCL network plug-in for libfabric (EFA); None: not on the loader's path."""
    peer_memory: str | None = None
    """The loaded module, nvidia_peermem or nv_peer_mem; None: neither."""
    dma_buf: bool | None = None
    """Kernel and NVIDIA driver can export GPU memory as DMA-BUF; None: could not be told."""
    dma_buf_reason: str = ""
    ib_hca: str | None = None
    """NCCL_IB_HCA as set; None: not set."""
    ib_gid_index: str | None = None
    """NCCL_IB_GID_INDEX as set; None: not set."""
