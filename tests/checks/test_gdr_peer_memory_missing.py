from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.network import Rdma, RdmaDevice, RdmaPort, Rendezvous
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "gdr-peer-memory-missing"
TWO = Rendezvous(
    host="a", master_here=True, port=29500, port_from="default", several_nodes="NNODES=2"
)


def gpus(name: str = "NVIDIA H100 80GB HBM3") -> Gpus:
    one = Gpu(index=0, name=name, memory_total=80 * 2**30, memory_used=0)
    return Gpus(host="a", driver="570.86.15", gpus=(one,))


def device(layer: str = "InfiniBand", driver: str = "mlx5_core") -> RdmaDevice:
    port = RdmaPort(number=1, state="ACTIVE", link_layer=layer)
    return RdmaDevice(name="mlx5_0", driver=driver, bus_id="0000:1a:00.0", ports=(port,))


SICK = Rdma(
    host="a",
    devices=(device(),),
    dma_buf=False,
    dma_buf_reason="the NVIDIA kernel modules are not the open ones",
)


def test_fires_where_there_is_neither(findings: Findings) -> None:
    (finding,) = findings(CAUSE, SICK, gpus())
    assert finding.severity is Severity.WARNING
    assert "not the open ones" in finding.because
    assert "modprobe nvidia_peermem" in finding.fixes[0].paste


@pytest.mark.parametrize(("where", "severity"), [((), Severity.NOTE), ((TWO,), Severity.WARNING)])
def test_roce_of_an_ethernet_card_matters_between_nodes(
    findings: Findings, where: tuple[Rendezvous, ...], severity: Severity
) -> None:
    (finding,) = findings(CAUSE, replace(SICK, devices=(device("Ethernet"),)), gpus(), *where)
    assert finding.severity is severity


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_mem", "nv_mem_nc"])
def test_quiet_with_a_peer_memory_module(findings: Findings, module: str) -> None:
    assert findings(CAUSE, replace(SICK, peer_memory=module), gpus()) == ()


@pytest.mark.parametrize("dma_buf", [True, None])
def test_quiet_with_dma_buf_or_where_it_could_not_be_told(
    findings: Findings, dma_buf: bool | None
) -> None:
    assert findings(CAUSE, replace(SICK, dma_buf=dma_buf), gpus()) == ()


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090", "NVIDIA TITAN RTX"])
def test_quiet_about_gpus_that_cannot_do_it(findings: Findings, name: str) -> None:
    assert findings(CAUSE, SICK, gpus(name)) == ()


@pytest.mark.parametrize("devices", [(), (device(driver="efa"),)])
def test_quiet_without_infiniband_or_roce(
    findings: Findings, devices: tuple[RdmaDevice, ...]
) -> None:
    assert findings(CAUSE, replace(SICK, devices=devices), gpus()) == ()
