from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus, PeerPath
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.network import Rdma, RdmaDevice, RdmaPort
from ddoctor.evidence.probes import ProbeRun, ProbeRuns
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "pcie-acs-iommu"
PORTS = ("0000:16:00.0", "0000:16:01.0")


def gpus(count: int, path: str | None) -> Gpus:
    each = (Gpu(index=i, name="A100", memory_total=1, memory_used=0) for i in range(count))
    peers = None if path is None else (PeerPath(a=0, b=1, path=path, read="ok"),)
    return Gpus(host="a", driver="570", gpus=tuple(each), peers=peers)


def kernel(
    ports: tuple[str, ...] | None = (), *, translates: bool | None = None, vm: str = ""
) -> Kernel:
    return Kernel(
        host="a",
        release="6.8",
        virtual_machine=vm,
        iommu_groups=0 if translates is None else 90,
        iommu_passthrough=None if translates is None else not translates,
        acs_redirecting=ports,
    )


def rdma() -> Rdma:
    port = RdmaPort(number=1, state="ACTIVE", link_layer="InfiniBand")
    return Rdma(
        host="a", devices=(RdmaDevice(name="mlx5_0", bus_id="0000:1a:00.0", ports=(port,)),)
    )


def test_acs_between_gpus_below_a_switch(findings: Findings) -> None:
    (finding,) = findings(CAUSE, kernel(PORTS), gpus(2, "pcie-switch"))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.devices == PORTS
    assert "for port in 0000:16:00.0 0000:16:01.0; do" in finding.fixes[0].paste


def test_acs_between_gpu_and_network_card(findings: Findings) -> None:
    (finding,) = findings(CAUSE, kernel(PORTS), gpus(8, "nvlink"), rdma())
    assert finding.confidence is Confidence.LIKELY


def test_acs_is_less_sure_where_the_paths_are_unknown(findings: Findings) -> None:
    (finding,) = findings(CAUSE, kernel(PORTS), gpus(2, None))
    assert finding.confidence is Confidence.POSSIBLE
    assert "nvidia-smi topo -m" in finding.because


def test_an_iommu_that_translates_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, kernel(translates=True), gpus(2, "host-bridge"))
    assert finding.severity is Severity.NOTE
    assert finding.confidence is Confidence.POSSIBLE
    assert "iommu=pt" in finding.fixes[0].paste


def test_an_iommu_that_translates_and_a_hang_are_a_warning(findings: Findings) -> None:
    hung = ProbeRuns(host="a", runs=(ProbeRun(probe="allreduce", outcome="hung"),))
    (finding,) = findings(CAUSE, kernel(translates=True), gpus(2, "host-bridge"), hung)
    assert finding.severity is Severity.WARNING
    assert "the all-reduce hung" in finding.because


@pytest.mark.parametrize(
    ("host", "cards"),
    [
        pytest.param(kernel(()), gpus(2, "pcie-switch"), id="no port redirects"),
        pytest.param(kernel(None), gpus(2, "pcie-switch"), id="not readable"),
        pytest.param(kernel(PORTS), gpus(1, "pcie-switch"), id="one GPU has no peers"),
        pytest.param(kernel(PORTS), gpus(8, "nvlink"), id="nothing talks through the switches"),
        pytest.param(
            kernel(PORTS, vm="KVM"), gpus(2, "pcie-switch"), id="virtual machines need it"
        ),
        pytest.param(kernel(translates=False), gpus(2, "host-bridge"), id="passed through"),
        pytest.param(kernel(translates=None), gpus(2, "host-bridge"), id="no IOMMU"),
        pytest.param(kernel(translates=True, vm="KVM"), gpus(2, "host-bridge"), id="virtual"),
        pytest.param(kernel(translates=True), gpus(1, None), id="translates for one GPU"),
    ],
)
def test_quiet(findings: Findings, host: Kernel, cards: Gpus) -> None:
    assert findings(CAUSE, host, cards) == ()
