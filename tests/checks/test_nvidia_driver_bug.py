from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "nvidia-driver-bug"
CRASHED = event("nccl-cumem-host", text="in ncclCuMemHostEnable () at misc/cudawrap.cc:92")


def test_a_crash_in_the_driver(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(CRASHED))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.POSSIBLE)
    assert "the driver crashed in cuMemCreate" in finding.because
    assert finding.fixes[0].paste == "export NCCL_CUMEM_HOST_ENABLE=0"


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert findings(CAUSE, logged(event("progress", done="5", total="9"))) == ()
