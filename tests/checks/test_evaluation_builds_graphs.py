from __future__ import annotations

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceEvaluation
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "evaluation-builds-graphs"
MODEL = SourceLine(file="train.py", line=20, text="out = model(x)")
KEEPS = SourceLine(file="train.py", line=22, text="total += loss")


def test_from_the_source(findings: Findings) -> None:
    one = SourceEvaluation(at=MODEL)
    (finding,) = findings(CAUSE, Script(files=("train.py",), evaluations_with_graphs=(one,)))
    assert finding.severity is Severity.NOTE
    assert "train.py:20 (`out = model(x)`) runs the model after eval()" in finding.because


def test_that_keeps_what_each_batch_leaves(findings: Findings) -> None:
    both = (SourceEvaluation(at=MODEL), SourceEvaluation(at=MODEL, keeps=KEEPS))
    (finding,) = findings(CAUSE, Script(files=("train.py",), evaluations_with_graphs=both))
    assert finding.severity is Severity.WARNING
    assert "train.py:22 (`total += loss`) keeps what each batch leaves" in finding.because


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, Script(files=("train.py",))) == ()
