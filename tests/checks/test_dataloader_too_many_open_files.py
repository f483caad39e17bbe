from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "dataloader-too-many-open-files"


def test_descriptors_are_used_up(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("too-many-files")))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert "ulimit -n" in finding.because
    assert "ulimit -n" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert findings(CAUSE, logged(event("progress", done="5", total="5"), event("disk-full"))) == ()
