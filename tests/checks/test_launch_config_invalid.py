from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "launch-config-invalid"


def test_tasks_for_lightning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("slurm-devices", devices="4")))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "each of its 4 devices" in finding.because
    assert "--ntasks-per-node=4" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(
            CAUSE,
            logged(event("progress", done="5", total="5"), event("rank-expected", variable="RANK")),
        )
        == ()
    )
