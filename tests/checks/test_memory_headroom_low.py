from __future__ import annotations

import pytest

from ddoctor.evidence.plan import Plan
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.plans import planned

CAUSE = "memory-headroom-low"


def test_nothing_that_was_asked_for_leaves_enough(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(80, (1,)))
    assert finding.severity is Severity.WARNING
    assert finding.because.startswith("one GPU leaves ")
    assert "expandable_segments:True" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        planned(80),
        planned(24),
        planned(24, (16,)),
        planned(24, (1,), trainable=82e6, activations=1),
    ],
    ids=["two fit", "nothing fits", "sixteen fit", "adapters"],
)
def test_quiet(findings: Findings, section: Plan) -> None:
    assert findings(CAUSE, section) == ()
