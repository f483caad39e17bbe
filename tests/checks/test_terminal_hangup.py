from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "terminal-hangup"


def test_a_closed_terminal(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("hangup", text="closing signal SIGHUP")))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "the terminal" in finding.because
    assert "tmux" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(CAUSE, logged(event("progress", done="5", total="5"), event("time-limit"))) == ()
    )
