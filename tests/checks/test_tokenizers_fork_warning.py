from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "tokenizers-fork-warning"


def test_it_is_harmless(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("tokenizers-fork")))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.CERTAIN)
    assert "nothing fails of it" in finding.because
    assert "TOKENIZERS_PARALLELISM" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(CAUSE, logged(event("progress", done="5", total="5"), event("worker-killed")))
        == ()
    )
