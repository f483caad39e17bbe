from __future__ import annotations

from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "fsdp-mixed-params-flatten"


def test_several_types(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("flatten-dtype", rank=2)))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "several types" in finding.because
    assert ".to(torch.bfloat16)" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(CAUSE, logged(event("progress", done="5", total="5"), event("checkpoint-world")))
        == ()
    )


def test_parameters_that_are_not_trained(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("flatten-grad")))
    assert "only some are trained" in finding.because
    assert "use_orig_params=True" in finding.fixes[0].paste
