from __future__ import annotations

import pytest

from ddoctor.evidence.plan import Plan
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.plans import planned

CAUSE = "every-rank-loads-full-model"


def test_eight_models_are_too_much_for_a_host(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(32, (8,), host=64))
    assert finding.severity is Severity.WARNING
    # Eight times 8.8 GB.
    assert "8 ranks of a host that each load the whole model need 66 GiB" in finding.because
    assert "fsdp_cpu_ram_efficient_loading: true" in finding.fixes[0].paste


def test_of_many_hosts_each_has_eight(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(32, (32,), host=64))
    assert "8 ranks of a host" in finding.because


@pytest.mark.parametrize(
    "section",
    [
        planned(32, (8,), host=512),
        planned(32, (8,)),
        planned(80, (8,), trainable=82e6, host=64),
        planned(8, (1,), host=64),
    ],
    ids=["enough", "nobody told", "each GPU has all of it anyway", "nothing fits"],
)
def test_quiet(findings: Findings, section: Plan) -> None:
    assert findings(CAUSE, section) == ()
