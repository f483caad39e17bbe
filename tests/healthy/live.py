"""A sound training on 8 H100s, looked at from outside."""

from __future__ import annotations

from ddoctor.evidence.build_locks import BuildLocks
from ddoctor.evidence.host_rates import DiskTraffic, HostRates, InterfaceTraffic
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
)
