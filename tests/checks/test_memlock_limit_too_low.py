from __future__ import annotations

import pytest

from ddoctor.evidence.host import Kernel, Limit, Limits
from ddoctor.evidence.network import Rdma, RdmaDevice, RdmaPort
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "memlock-limit-too-low"
KIB = 2**10
MIB = 2**20


def limits(soft: int | None, hard: int | None = 8 * MIB, privileged: bool = False) -> Limits:
    files = Limit(soft=65536, hard=65536)
    return Limits(
        host="a",
        open_files=files,
        locked_memory=Limit(soft=soft, hard=hard),
        processes=files,
        locks_without_limit=privileged,
    )


def rdma(link_layer: str = "InfiniBand", state: str = "ACTIVE") -> Rdma:
    port = RdmaPort(number=1, state=state, link_layer=link_layer)
    return Rdma(
        host="a", devices=(RdmaDevice(name="mlx5_0", bus_id="0000:1a:00.0", ports=(port,)),)
    )


@pytest.mark.parametrize("limit", [64 * KIB, 8 * MIB])
def test_the_usual_limits_stop_a_run_over_infiniband(findings: Findings, limit: int) -> None:
    (finding,) = findings(CAUSE, limits(limit), rdma())
    assert finding.severity is Severity.ERROR
    assert "mlx5_0" in finding.because


def test_warns_where_only_many_channels_fail(findings: Findings) -> None:
    (finding,) = findings(CAUSE, limits(64 * MIB), rdma())
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.POSSIBLE


def test_only_warns_where_the_cards_may_serve_for_anything(findings: Findings) -> None:
    (finding,) = findings(CAUSE, limits(8 * MIB), rdma("Ethernet"))
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("container", "hard", "words"),
    [
        ("", None, "ulimit -l unlimited"),
        ("", 8 * MIB, "limits.d"),
        ("docker", 8 * MIB, "--ulimit memlock=-1"),
        ("kubernetes", 8 * MIB, "IPC_LOCK"),
    ],
)
def test_the_fix_fits_the_place(
    findings: Findings, container: str, hard: int | None, words: str
) -> None:
    kernel = Kernel(host="a", release="6.8", container=container)
    (finding,) = findings(CAUSE, limits(8 * MIB, hard), rdma(), kernel)
    assert words in finding.fixes[0].paste


def test_quiet_without_a_limit(findings: Findings) -> None:
    assert findings(CAUSE, limits(None), rdma()) == ()


def test_quiet_where_the_limit_is_ample(findings: Findings) -> None:
    assert findings(CAUSE, limits(64 * 2**30), rdma()) == ()


def test_quiet_for_root(findings: Findings) -> None:
    assert findings(CAUSE, limits(64 * KIB, privileged=True), rdma()) == ()


def test_quiet_without_rdma_devices(findings: Findings) -> None:
    assert findings(CAUSE, limits(64 * KIB), Rdma(host="a")) == ()


def test_quiet_where_no_port_is_up(findings: Findings) -> None:
    assert findings(CAUSE, limits(64 * KIB), rdma(state="DOWN")) == ()
