from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "job-time-limit"


def test_the_limit_of_a_job(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE, logged(event("time-limit", text="JOB 7 CANCELLED DUE TO TIME LIMIT"))
    )
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.because.startswith("train.log:7: the job had used its time")
    assert finding.evidence[0].value == "JOB 7 CANCELLED DUE TO TIME LIMIT"
    assert "--time" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(CAUSE, logged(event("progress", done="5", total="5"), event("node-failure"))) == ()
    )
