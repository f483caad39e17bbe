from __future__ import annotations

import msgspec
import pytest

from ddoctor.evidence.plan import MemoryParts, Plan
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.plans import GB, planned

CAUSE = "gradient-checkpointing-unneeded"


def checkpointed(section: Plan, kept: int) -> Plan:
    """Without checkpointing it would need so many gigabytes."""
    return msgspec.structs.replace(
        section,
        checkpointing="every",
        without_checkpointing=MemoryParts(activations=kept * GB),
    )


def test_it_would_fit_without(findings: Findings) -> None:
    (finding,) = findings(CAUSE, checkpointed(planned(80, (8,)), 50))
    assert finding.severity is Severity.WARNING
    assert "needs 46.6 GiB without gradient checkpointing" in finding.because
    assert "gradient_checkpointing=False" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        checkpointed(planned(80, (8,)), 70),
        checkpointed(planned(80, (8,)), 90),
        planned(80, (8,)),
        checkpointed(planned(8, (1,)), 5),
    ],
    ids=["it would be tight", "it would not fit", "it is not on", "nothing fits anyway"],
)
def test_quiet(findings: Findings, section: Plan) -> None:
    assert findings(CAUSE, section) == ()
