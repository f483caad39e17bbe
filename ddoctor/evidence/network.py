"""The ways between nodes: interfaces, names, RDMA devices, and where the ranks are to meet."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.interfaces import Interface
from ddoctor.evidence.section import Part, Section


class Route(Part, frozen=True, kw_only=True):
    """The way the kernel would take to an address."""

    to: str
    """An address, or ``default``."""
    interface: str
    gateway: str = ""
    source: str = ""
    """The own address that packets would carry."""


class ResolvedName(Part, frozen=True, kw_only=True):
    """What the host's resolver says about a name."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    """The resolver's own words; empty: it resolved."""


class Network(Section, frozen=True, kw_only=True):
    """Interfaces, the default route and the own name of a host, and what steers NCCL and gloo.

    The variables are those in force, from the environment or from NCCL's own files.
    """

    interfaces: tuple[Interface, ...]
    """In the order in which the kernel lists their addresses."""
    default_route: Route | None = None
    own_name: ResolvedName
    """The name from gethostname(): gloo binds to what it resolves to."""
    announced_name: str = ""
    """The name from getfqdn(): torchrun's c10d rendezvous tells it to the other nodes."""
    nccl_socket_ifname: str | None = None
    nccl_socket_family: str | None = None
    nccl_comm_id: str | None = None
    gloo_socket_ifname: str | None = None

    def interface(self, name: str) -> Interface | None:
        """The interface of that name."""
        return next((one for one in self.interfaces if one.name == name), None)

    def facing(self, route: Route | None = None) -> Interface | None:
        """The interface towards the other nodes: of this route, else of the default route, else
        the first that leads off this host."""
        routed = [self.interface(way.interface) for way in (route, self.default_route) if way]
        away = [one for one in self.interfaces if not one.stays_here]
        return next((one for one in (*routed, *away) if one is not None and one.usable), None)


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
    """MASTER_ADDR resolves to this host, or is not set."""
    master_route: Route | None = None
    """The way to MASTER_ADDR, when it is another host."""
    port: int
    port_from: Literal["MASTER_PORT", "default"]
    port_free: bool | None = None
    """None: not tried; ``unseen`` says why, or the store belongs on another host."""
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
    board: str = ""
    """The maker's number of the model, say MT_0000000838."""
    firmware: str = ""
    """Say 28.39.1002."""
    ports: tuple[RdmaPort, ...] = ()

    @property
    def active(self) -> bool:
        """Whether any port could carry traffic."""
        return any(port.state == "ACTIVE" for port in self.ports)


class VerbsNode(Part, frozen=True, kw_only=True):
    """A device node /dev/infiniband/uverbs*."""

    path: str
    refused: str = ""
    """Why this user cannot open it for reading and writing; empty: it can be opened."""


class Rdma(Section, frozen=True, kw_only=True):
    """RDMA devices of a host, and whether this user's processes could use them.

    The variables are those in force, from the environment or from NCCL's own files.
    """

    devices: tuple[RdmaDevice, ...] = ()
    verbs_nodes: tuple[VerbsNode, ...] = ()
    libibverbs: str | None = None
    """The library that NCCL would load; None: the loader finds none."""
    verbs_devices: tuple[str, ...] | None = None
    """The devices that libibverbs offers to NCCL; None: it could not be asked."""
    net_plugin: str | None = None
    """The network plug-in that NCCL would load, such as EFA's; None: the loader finds none."""
    net_plugin_aside: str | None = None
    """EFA's plug-in where its installer puts it, whether or not the loader looks there."""
    peer_memory: str | None = None
    """The peer memory client that is loaded (nvidia_peermem, nv_mem, nv_mem_nc); None: none."""
    dma_buf: bool | None = None
    """Kernel and NVIDIA driver can export GPU memory as DMA-BUF; None: could not be told."""
    dma_buf_reason: str = ""
    nccl_ib_hca: str | None = None
    nccl_ib_gid_index: str | None = None
    nccl_net_plugin: str | None = None

    @property
    def between_nodes(self) -> bool:
        """InfiniBand or EFA: nobody has it for one node, while most Ethernet cards speak RoCE."""
        return any(
            device.driver == "efa" or any(port.link_layer == "InfiniBand" for port in device.ports)
            for device in self.fabric
        )

    @property
    def fabric(self) -> tuple[RdmaDevice, ...]:
        """Devices of hardware with a port that could carry traffic: no soft RoCE, no dead ports."""
        return tuple(device for device in self.devices if device.active and device.bus_id)
