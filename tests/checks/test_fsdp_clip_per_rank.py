from __future__ import annotations

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "fsdp-clip-per-rank"
CLIP = SourceLine(file="train.py", line=41, text="clip_grad_norm_(model.parameters(), 1.0)")


def test_from_the_source(findings: Findings) -> None:
    (finding,) = findings(CAUSE, Script(files=("train.py",), clipped_in_parts=(CLIP,)))
    assert finding.severity is Severity.WARNING
    assert "train.py:41 (`clip_grad_norm_(model.parameters(), 1.0)`)" in finding.because
    assert "model.clip_grad_norm_(1.0)" in finding.fixes[0].paste


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, Script(files=("train.py",))) == ()
