from __future__ import annotations

import pytest

from ddoctor.models import Severity
from tests.conftest import Findings
from tests.launched import launch

CAUSE = "fsdp-ram-efficient-random-weights"
LOADS, SENDS = "fsdp.cpu_ram_efficient_loading", "fsdp.sync_module_states"


def test_nothing_sends_the_weights(findings: Findings) -> None:
    (finding,) = findings(CAUSE, launch("accelerate", "train.py", {LOADS: "true", SENDS: "false"}))
    assert finding.severity is Severity.WARNING
    assert "only rank 0 loads the weights" in finding.because


@pytest.mark.parametrize(
    "settings",
    [
        {LOADS: "true", SENDS: "true"},
        {LOADS: "false", SENDS: "false"},
        {LOADS: "true", SENDS: "false", "fsdp.version": "2"},
        {LOADS: "true", SENDS: "null"},
        {LOADS: "true"},
        {},
    ],
)
def test_quiet(findings: Findings, settings: dict[str, str]) -> None:
    assert findings(CAUSE, launch("accelerate", "train.py", settings)) == ()
