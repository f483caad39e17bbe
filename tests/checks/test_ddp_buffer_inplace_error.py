from __future__ import annotations

from ddoctor.models import Confidence
from tests.conftest import Findings
from tests.logged import event, logged

CAUSE = "ddp-buffer-inplace-error"


def test_likely_under_ddp(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("changed-in-place"), event("ddp-forward")))
    assert finding.confidence is Confidence.LIKELY
    assert "broadcast_buffers=False" in finding.fixes[0].paste


def test_only_possible_without_a_sign_of_it(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("changed-in-place")))
    assert finding.confidence is Confidence.POSSIBLE


def test_quiet_about_ddp_alone(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert findings(CAUSE, logged(event("ddp-forward"))) == ()
