from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceImport
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.source_calls import WRAPS

CAUSE = "evaluation-in-training-mode"
PASS = SourceLine(file="train.py", line=22, text="right += (model(x).argmax(1) == y).sum()")


def script(*frameworks: str) -> Script:
    imports = (SourceImport(framework=one, at=PASS) for one in frameworks)
    return Script(
        files=("train.py",),
        evaluated_in_training_mode=(PASS,),
        imports=tuple(imports),
        calls=(WRAPS,),
    )


@pytest.mark.parametrize("frameworks", [("DDP",), ("DDP", "accelerate")])
def test_from_the_source(findings: Findings, frameworks: tuple[str, ...]) -> None:
    (finding,) = findings(CAUSE, script(*frameworks))
    assert finding.severity is Severity.WARNING
    assert "train.py:22 (`right += (model(x).argmax(1) == y).sum()`) evaluates" in finding.because


@pytest.mark.parametrize("source", [Script(files=("train.py",)), script("Lightning")])
def test_quiet(findings: Findings, source: Script) -> None:
    assert findings(CAUSE, source) == ()
