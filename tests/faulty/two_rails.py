"""The pairs of four ranks, said to be two on each of two hosts with a NIC for each rank."""

from importlib import import_module
from typing import Any

from ddoctor.probing.nccl_log import Chosen
from ddoctor.probing.world import ProbeWorld


class Railed(ProbeWorld):
    """NCCL is said to have taken RDMA."""

    def nccl(self) -> Chosen:
        return super().nccl()._replace(transports=("NET/IB/0/GDRDMA",))


def measure(world: ProbeWorld) -> Any:
    fields = {name: getattr(world, name) for name in ProbeWorld.__dataclass_fields__}
    railed = Railed(**fields | {"host": f"node-{world.rank // 2}"})
    return import_module("ddoctor.probes.pairs").measure(railed)
