from __future__ import annotations

from typing import Literal

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceOtherUnit
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "schedule-unit-wrong"
MADE = SourceLine(file="train.py", line=12, text="schedule = OneCycleLR(optimizer, 0.1, total)")
MOVED = SourceLine(file="train.py", line=41, text="schedule.step()")


@pytest.mark.parametrize(("counts", "moves"), [("epochs", "each step"), ("steps", "each epoch")])
def test_from_the_source(
    findings: Findings, counts: Literal["epochs", "steps"], moves: str
) -> None:
    one = SourceOtherUnit(made=MADE, at=MOVED, counts=counts)
    (finding,) = findings(CAUSE, Script(files=("train.py",), other_units=(one,)))
    assert finding.severity is Severity.WARNING
    assert f"counts {counts}, and train.py:41 (`schedule.step()`) moves it" in finding.because
    assert f"once in {moves}" in finding.because


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, Script(files=("train.py",))) == ()
