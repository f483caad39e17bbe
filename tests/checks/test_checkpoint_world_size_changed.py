from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "checkpoint-world-size-changed"


def test_another_number_of_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("checkpoint-world")))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "another number of ranks" in finding.because
    assert "ds_to_universal" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(CAUSE, logged(event("progress", done="5", total="5"), event("flatten-grad"))) == ()
    )
