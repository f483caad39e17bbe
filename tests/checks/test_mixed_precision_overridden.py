from __future__ import annotations

import pytest

from ddoctor.models import Severity
from tests.conftest import Findings
from tests.launched import launch

CAUSE = "mixed-precision-overridden"


def test_own_switch_under_accelerate(findings: Findings) -> None:
    sections = launch("accelerate", "lerobot-train", {"arg.policy.use_amp": "true"})
    (finding,) = findings(CAUSE, sections)
    assert finding.severity is Severity.WARNING
    assert "trains in fp32" in finding.because


def test_own_switch_against_a_file(findings: Findings) -> None:
    told = {"arg.use_amp": "True", "precision": "no"}
    (finding,) = findings(CAUSE, launch("accelerate", "lerobot-train", told))
    assert "is off" in finding.because


@pytest.mark.parametrize(
    ("launcher", "script", "settings"),
    [
        ("accelerate", "lerobot-train", {"arg.policy.use_amp": "false"}),
        ("accelerate", "lerobot-train", {"arg.policy.use_amp": "true", "precision": "bf16"}),
        ("accelerate", "train.py", {"arg.use_amp": "true"}),
        ("python", "lerobot-train", {"arg.policy.use_amp": "true"}),
        ("accelerate", "lerobot-train", {}),
    ],
)
def test_quiet(findings: Findings, launcher: str, script: str, settings: dict[str, str]) -> None:
    assert findings(CAUSE, launch(launcher, script, settings)) == ()
