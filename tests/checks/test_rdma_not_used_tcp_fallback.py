from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.host import Kernel
from ddoctor.evidence.network import Rdma, RdmaDevice, RdmaPort, Rendezvous, VerbsNode
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "rdma-not-used-tcp-fallback"
TWO = Rendezvous(
    host="a", master_here=True, port=29500, port_from="default", several_nodes="NNODES=2"
)


def device(
    name: str = "mlx5_0",
    driver: str = "mlx5_core",
    layer: str = "InfiniBand",
    state: str = "ACTIVE",
    bus_id: str = "0000:1a:00.0",
) -> RdmaDevice:
    port = RdmaPort(number=1, state=state, link_layer=layer)
    return RdmaDevice(name=name, driver=driver, bus_id=bus_id, ports=(port,))


SOUND = Rdma(
    host="a",
    devices=(device(),),
    verbs_nodes=(VerbsNode(path="/dev/infiniband/uverbs0"),),
    libibverbs="libibverbs.so.1",
    verbs_devices=("mlx5_0",),
)
REFUSED = VerbsNode(path="/dev/infiniband/uverbs0", refused="Permission denied")
EFA = replace(
    SOUND,
    devices=(device("efa_0", "efa", "Unspecified"),),
    verbs_devices=("efa_0",),
    net_plugin="/opt/amazon/ofi-nccl/lib/libnccl-net.so",
)


@pytest.mark.parametrize(
    ("sick", "words"),
    [
        (replace(SOUND, libibverbs=None, verbs_devices=None), "libibverbs cannot be loaded"),
        (replace(SOUND, verbs_nodes=()), "/dev/infiniband has no uverbs"),
        (replace(SOUND, verbs_nodes=(REFUSED,)), "Permission denied"),
        (replace(SOUND, verbs_devices=()), "provider of mlx5_core is missing"),
        (replace(EFA, net_plugin=None), "libnccl-net.so"),
    ],
    ids=["library", "no nodes", "refused", "provider", "efa"],
)
def test_a_fabric_that_nccl_cannot_use(findings: Findings, sick: Rdma, words: str) -> None:
    (finding,) = findings(CAUSE, sick)
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert words in finding.because


@pytest.mark.parametrize(
    ("container", "words"),
    [("docker", "--device=/dev/infiniband"), ("kubernetes", "rdma/"), ("", "modprobe ib_uverbs")],
)
def test_the_fix_is_made_for_where_it_runs(findings: Findings, container: str, words: str) -> None:
    kernel = Kernel(host="a", release="6.1", container=container)
    (finding,) = findings(CAUSE, replace(SOUND, verbs_nodes=()), kernel)
    assert words in finding.fixes[0].paste


def test_a_plugin_aside_is_named(findings: Findings) -> None:
    aside = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    (finding,) = findings(CAUSE, replace(EFA, net_plugin=None, net_plugin_aside=aside))
    assert "LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:" in finding.fixes[0].paste
    assert f"NCCL_NET_PLUGIN={aside}" in finding.fixes[0].paste
    assert finding.fixes[1].paste == 'export NCCL_NET="AWS Libfabric"'


@pytest.mark.parametrize(("where", "severity"), [((), Severity.NOTE), ((TWO,), Severity.WARNING)])
def test_roce_of_an_ethernet_card_matters_between_nodes(
    findings: Findings, where: tuple[Rendezvous, ...], severity: Severity
) -> None:
    sick = replace(SOUND, devices=(device(layer="Ethernet"),), libibverbs=None)
    (finding,) = findings(CAUSE, sick, *where)
    assert finding.severity is severity


@pytest.mark.parametrize("sound", [SOUND, EFA, replace(SOUND, verbs_devices=None)])
def test_quiet_where_nccl_can_use_them(findings: Findings, sound: Rdma) -> None:
    assert findings(CAUSE, sound, TWO) == ()


@pytest.mark.parametrize(
    "devices",
    [(), (device(state="DOWN"),), (device("rxe0", driver="", bus_id=""),)],
    ids=["none", "down", "soft RoCE"],
)
def test_quiet_without_a_fabric(findings: Findings, devices: tuple[RdmaDevice, ...]) -> None:
    assert findings(CAUSE, Rdma(host="a", devices=devices), TWO) == ()


def test_quiet_where_one_of_the_nodes_can_be_opened(findings: Findings) -> None:
    other = VerbsNode(path="/dev/infiniband/uverbs1")
    assert findings(CAUSE, replace(SOUND, verbs_nodes=(REFUSED, other)), TWO) == ()
