from __future__ import annotations

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceImport
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.source_calls import WRAPS

CAUSE = "gradients-not-scaled"
AUTOCAST = SourceLine(file="train.py", line=22, text='with torch.autocast("cuda"):')

UNSCALED = Script(files=("train.py",), calls=(WRAPS,), unscaled_float16=AUTOCAST)


def test_from_the_source(findings: Findings) -> None:
    (finding,) = findings(CAUSE, UNSCALED)
    assert finding.severity is Severity.WARNING
    assert 'train.py:22 (`with torch.autocast("cuda"):`) lets' in finding.because


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, Script(files=("train.py",), calls=(WRAPS,))) == ()


def test_quiet_where_a_framework_may_scale(findings: Findings) -> None:
    framework = SourceImport(framework="accelerate", at=AUTOCAST)
    script = Script(
        files=("train.py",), calls=(WRAPS,), unscaled_float16=AUTOCAST, imports=(framework,)
    )
    assert findings(CAUSE, script) == ()


def test_weights_of_float16(findings: Findings) -> None:
    half = SourceLine(file="train.py", line=7, text="net = net.half()")
    (finding,) = findings(CAUSE, Script(files=("train.py",), calls=(WRAPS,), half_models=(half,)))
    assert finding.title.startswith("The weights")
    assert "train.py:7 (`net = net.half()`)" in finding.because
