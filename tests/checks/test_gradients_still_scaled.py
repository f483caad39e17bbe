from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceScaled
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "gradients-still-scaled"
SCALE = SourceLine(file="train.py", line=40, text="scaler.scale(loss).backward()")
CLIP = SourceLine(file="train.py", line=41, text="clip_grad_norm_(model.parameters(), 1.0)")


@pytest.mark.parametrize(
    ("applies", "says"),
    [(False, "clips the gradients of the loss that train.py:40"), (True, "applies the gradients")],
)
def test_from_the_source(findings: Findings, applies: bool, says: str) -> None:
    one = SourceScaled(at=CLIP, scale=SCALE, applies=applies)
    (finding,) = findings(CAUSE, Script(files=("train.py",), scaled_gradients=(one, one)))
    assert finding.severity is Severity.WARNING
    assert "train.py:41 (`clip_grad_norm_(model.parameters(), 1.0)`)" in finding.because
    assert says in finding.because
    assert "scaler.unscale_(optimizer)" in finding.fixes[0].paste


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, Script(files=("train.py",))) == ()
