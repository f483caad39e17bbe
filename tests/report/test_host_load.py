from __future__ import annotations

import msgspec

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.live import DiskTraffic, GpuRates, GpuTraffic, HostRates, InterfaceTraffic
from ddoctor.evidence.section import Evidence
from ddoctor.report.host_load import host_load
from tests.healthy.gpus import GPUS


def rates(host: str, busy: float = 0.03, sent: float = 1.2) -> HostRates:
    return HostRates(
        host=host,
        seconds=10.0,
        load=2.0,
        disks=(
            DiskTraffic(name="sda", busy=0.01, read=0.0, written=0.2),
            DiskTraffic(name="sdb", busy=busy, read=0.0, written=2.0),
        ),
        interfaces=(InterfaceTraffic(name="eth0", received=0.02, sent=sent),),
    )


def test_one_host() -> None:
    assert host_load(Evidence([rates("a")])) == (
        "load 2.0; sdb busy for 3% of the time, 2 MiB/s written; eth0: 1.2 MiB/s sent"
    )


def test_of_several_hosts_the_busiest_is_told_by_its_name() -> None:
    told = host_load(Evidence([rates("a", busy=0.5), rates("b", sent=30.0)]))
    assert told == (
        "load 2.0; sdb on a busy for 50% of the time, 2 MiB/s written; eth0 on b: 30.0 MiB/s sent"
    )


def test_gpus_from_the_least_to_the_most() -> None:
    moved = GpuRates(
        host="a",
        gpus=(
            GpuTraffic(index=0, pcie_received=100.0, nvlink_sent=9000.0),
            GpuTraffic(index=1, pcie_received=300.0),
        ),
    )
    told = host_load(Evidence([rates("a"), moved]))
    assert told.endswith(
        "; GPUs: 100 MiB/s to 300 MiB/s received over PCIe, 9000 MiB/s sent over NVLink"
    )


def test_a_disk_that_rests_is_not_told() -> None:
    disk = DiskTraffic(name="sda", busy=0.001, read=0.0, written=0.0)
    quiet = msgspec.structs.replace(rates("a"), disks=(disk,))
    assert host_load(Evidence([quiet])) == "load 2.0; eth0: 1.2 MiB/s sent"


def test_nothing_where_nobody_looked() -> None:
    assert host_load(Evidence([Gpus(driver="570", gpus=GPUS)])) == ""
