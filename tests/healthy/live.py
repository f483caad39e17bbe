"""A sound training on 8 H100s, looked at from outside."""

from __future__ import annotations

from ddoctor.evidence.live import (
    BuildLocks,
    DiskTraffic,
    GpuRates,
    GpuTraffic,
    HostRates,
    InterfaceTraffic,
)
from tests.healthy.host import HOST
from tests.live_look import look, moving

SECTIONS = (
    look(*(moving(rank, workers=4) for rank in range(8)), host=HOST),
    BuildLocks(host=HOST),
    HostRates(
        host=HOST,
        seconds=10.0,
        load=40.0,
        disks=(DiskTraffic(name="nvme0n1", busy=0.95, read=2400.0, written=3.0),),
        interfaces=(InterfaceTraffic(name="eth0", received=1.2, sent=0.8),),
    ),
    GpuRates(
        host=HOST,
        gpus=tuple(
            GpuTraffic(
                index=index,
                pcie_received=310.0 + index,
                pcie_sent=12.0,
                nvlink_received=41_000.0,
                nvlink_sent=41_000.0,
            )
            for index in range(8)
        ),
    ),
)
