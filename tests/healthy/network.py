"""A sound node of an InfiniBand cluster: 8 HCAs of 400 Gbit/s and an Ethernet card of 100."""

from __future__ import annotations

from ddoctor.evidence.cluster_probes import InterfaceRate, InterfaceRates
from ddoctor.evidence.network import (
    Address,
    Gid,
    Interface,
    Network,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Rendezvous,
    ResolvedName,
    Route,
    VerbsNode,
)

HOST = "node-1"
ADDRESS = "10.0.0.11"

INTERFACES = (
    Interface(
        name="lo",
        kind="loopback",
        up=True,
        running=True,
        addresses=(Address(address="127.0.0.1", prefix=8), Address(address="::1", prefix=128)),
        mtu=65536,
    ),
    Interface(
        name="eth0",
        kind="ethernet",
        up=True,
        running=True,
        addresses=(Address(address=ADDRESS, prefix=24),),
        speed=100_000,
        mtu=9000,
    ),
    Interface(
        name="docker0",
        kind="local-bridge",
        up=True,
        running=False,
        addresses=(Address(address="172.17.0.1", prefix=16),),
        mtu=1500,
    ),
)

HCAS = tuple(
    RdmaDevice(
        name=f"mlx5_{index}",
        bus_id=f"0000:{0x18 + 0x11 * index:02x}:00.0",
        driver="mlx5_core",
        numa_node=index // 4,
        ports=(
            RdmaPort(
                number=1,
                state="ACTIVE",
                physical_state="LinkUp",
                rate=400.0,
                link_layer="InfiniBand",
                gids=(Gid(index=0, gid=f"fe80::a088:c203:a:{index:x}", kind="IB"),),
            ),
        ),
    )
    for index in range(8)
)

SECTIONS = (
    InterfaceRates(
        rates=tuple(
            InterfaceRate(interface=name, sender=sender, receiver=receiver, rates=(2.8, 3.0, 2.9))
            for name in ("eth0", "eth1")
            for sender, receiver in ((HOST, "node-2"), ("node-2", HOST))
        )
    ),
    Network(
        host=HOST,
        interfaces=INTERFACES,
        default_route=Route(to="default", interface="eth0", gateway="10.0.0.1"),
        own_name=ResolvedName(name=HOST, addresses=(ADDRESS,)),
        announced_name=f"{HOST}.cluster",
    ),
    Rendezvous(
        host=HOST,
        master=ResolvedName(name=HOST, addresses=(ADDRESS,)),
        master_here=True,
        port=29500,
        port_from="MASTER_PORT",
        port_free=True,
        several_nodes="SLURM_NNODES=2",
    ),
    Rdma(
        host=HOST,
        devices=HCAS,
        verbs_nodes=tuple(VerbsNode(path=f"/dev/infiniband/uverbs{i}") for i in range(8)),
        libibverbs="libibverbs.so.1",
        verbs_devices=tuple(device.name for device in HCAS),
        peer_memory="nvidia_peermem",
        dma_buf=True,
        dma_buf_reason="open NVIDIA kernel modules on kernel 6.8.0",
    ),
)
