from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.network import Gid, Rdma, RdmaDevice, RdmaPort
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "roce-ib-config"
V1 = Gid(index=0, gid="fe80::1", kind="RoCE v1")
LINK_LOCAL = Gid(index=1, gid="fe80::1", kind="RoCE v2")
OLD_IPV4 = Gid(index=2, gid="::ffff:10.0.0.1", kind="RoCE v1", ipv4="10.0.0.1")
IPV4 = Gid(index=3, gid="::ffff:10.0.0.1", kind="RoCE v2", ipv4="10.0.0.1")
GLOBAL = Gid(index=5, gid="2001:db8::1", kind="RoCE v2")
TABLE = (V1, LINK_LOCAL, OLD_IPV4, IPV4, GLOBAL)


def hca(
    index: int,
    *,
    state: str = "ACTIVE",
    physical: str = "LinkUp",
    rate: float = 400.0,
    layer: str = "InfiniBand",
    gids: tuple[Gid, ...] | None = TABLE,
) -> RdmaDevice:
    port = RdmaPort(
        number=1, state=state, physical_state=physical, rate=rate, link_layer=layer, gids=gids
    )
    return RdmaDevice(
        name=f"mlx5_{index}", bus_id=f"0000:{index:02x}:00.0", driver="mlx5_core", ports=(port,)
    )


def roce(index: int = 0, gids: tuple[Gid, ...] | None = TABLE) -> RdmaDevice:
    return hca(index, layer="Ethernet", gids=gids)


def rdma(*devices: RdmaDevice, hcas: str | None = None, gid: str | None = None) -> Rdma:
    return Rdma(host="a", devices=devices, nccl_ib_hca=hcas, nccl_ib_gid_index=gid)


def gpus(count: int) -> Gpus:
    one = (Gpu(index=index, name="H100", memory_total=1, memory_used=0) for index in range(count))
    return Gpus(host="a", driver="570.86.15", gpus=tuple(one))


@pytest.mark.parametrize("value", ["mlx5_9", "=mlx5_9:1", "mlx4"])
def test_no_named_device_is_there(findings: Findings, value: str) -> None:
    (finding,) = findings(CAUSE, rdma(hca(0), hca(1), hcas=value))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert "falls back to TCP" in finding.because
    assert finding.fixes[1].paste == "export NCCL_IB_HCA==mlx5_0,mlx5_1"


def test_one_of_the_named_devices_is_not_there(findings: Findings) -> None:
    (finding,) = findings(CAUSE, rdma(hca(0), hca(1), hcas="=mlx5_0,mlx5_9"))
    assert "names mlx5_9" in finding.because
    assert "uses only the others" in finding.because


@pytest.mark.parametrize("value", [None, "", "mlx5", "mlx5_0:1,mlx5_1", "=mlx5_1", "^mlx5_9"])
def test_quiet_where_the_named_devices_are_there(findings: Findings, value: str | None) -> None:
    assert findings(CAUSE, rdma(hca(0), hca(1), hcas=value)) == ()


def test_a_device_is_named_where_there_is_none(findings: Findings) -> None:
    (finding,) = findings(CAUSE, rdma(hcas="mlx5_0"))
    assert "no RDMA device" in finding.because
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("hcas", [None, "", "^mlx5_2"])
def test_quiet_where_there_is_no_rdma_and_none_is_asked_for(
    findings: Findings, hcas: str | None
) -> None:
    assert findings(CAUSE, rdma(hcas=hcas, gid="3")) == ()


def test_the_gid_row_is_empty(findings: Findings) -> None:
    (finding,) = findings(CAUSE, rdma(roce(), gid="7"))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "row 3 is RoCE v2 10.0.0.1" in finding.because
    assert finding.where.devices == ("mlx5_0",)
    assert finding.fixes[0].paste == "unset NCCL_IB_GID_INDEX"


@pytest.mark.parametrize("index", ["0", "1", "2"])
def test_the_gid_row_is_not_routed(findings: Findings, index: str) -> None:
    (finding,) = findings(CAUSE, rdma(roce(), gid=index))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)


@pytest.mark.parametrize("index", [None, "3", "5", "-1", "three"])
def test_quiet_about_a_good_gid_row(findings: Findings, index: str | None) -> None:
    assert findings(CAUSE, rdma(roce(), gid=index)) == ()


@pytest.mark.parametrize("gids", [None, (V1,)])
def test_quiet_where_no_better_row_is_known(
    findings: Findings, gids: tuple[Gid, ...] | None
) -> None:
    assert findings(CAUSE, rdma(roce(gids=gids), gid="0")) == ()


def test_quiet_about_gid_rows_of_infiniband(findings: Findings) -> None:
    assert findings(CAUSE, rdma(hca(0), gid="7")) == ()


def test_a_port_that_no_subnet_manager_knows(findings: Findings) -> None:
    (finding,) = findings(CAUSE, rdma(hca(0), hca(1, state="INIT")))
    assert "no subnet manager" in finding.because
    assert finding.where.devices == ("mlx5_1",)


@pytest.mark.parametrize(
    "odd",
    [hca(7, state="DOWN", physical="Polling", rate=10.0), hca(7, rate=100.0)],
    ids=["down", "slower"],
)
def test_one_of_eight_rails_is_odd(findings: Findings, odd: RdmaDevice) -> None:
    (finding,) = findings(CAUSE, rdma(*map(hca, range(7)), odd), gpus(8))
    assert finding.where.devices == ("mlx5_7",)
    assert "7 siblings" in finding.because


def test_quiet_about_ports_of_another_kind(findings: Findings) -> None:
    ethernet = hca(7, layer="Ethernet", rate=100.0)
    assert findings(CAUSE, rdma(*map(hca, range(7)), ethernet), gpus(8)) == ()


def test_quiet_about_ports_without_a_cable(findings: Findings) -> None:
    unplugged = [hca(index, state="DOWN", physical="Polling") for index in range(4, 8)]
    assert findings(CAUSE, rdma(*map(hca, range(4)), *unplugged), gpus(8)) == ()


def test_quiet_about_a_slower_card_for_storage(findings: Findings) -> None:
    assert findings(CAUSE, rdma(*map(hca, range(8)), hca(8, rate=200.0)), gpus(8)) == ()


def test_quiet_about_a_port_that_was_disabled(findings: Findings) -> None:
    disabled = hca(7, state="DOWN", physical="Disabled")
    assert findings(CAUSE, rdma(*map(hca, range(7)), disabled), gpus(8)) == ()


def test_quiet_about_a_port_that_is_down_where_the_gpus_are_not_known(findings: Findings) -> None:
    down = hca(7, state="DOWN", physical="Polling")
    assert findings(CAUSE, rdma(*map(hca, range(7)), down)) == ()
