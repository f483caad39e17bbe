from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceImport
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "evaluation-in-training-mode"
PASS = SourceLine(file="train.py", line=22, text="right += (model(x).argmax(1) == y).sum()")

WRAPS = SourceCall(
    name="torch.nn.parallel.DistributedDataParallel",
    at=SourceLine(file="train.py", line=9, text="model = DDP(net)"),
)


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
