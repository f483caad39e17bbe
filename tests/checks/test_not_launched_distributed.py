from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "not-launched-distributed"


def test_no_launcher(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("rank-expected", variable="RANK")))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert "no launcher has set" in finding.because
    assert "torchrun" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(
            CAUSE,
            logged(
                event("progress", done="5", total="5"),
                event("clients-joined", joined="8", wanted="8"),
            ),
        )
        == ()
    )


def test_a_group_that_is_used_too_early_looks_alike(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("rank-expected")))
    assert finding.confidence is Confidence.POSSIBLE
