from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall, SourceLine, Within
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "group-made-each-step"


def script(*within: Within) -> Script:
    at = SourceLine(file="train.py", line=38, text="group = dist.new_group([0, 1])")
    call = SourceCall(name="torch.distributed.new_group", at=at, within=within)
    return Script(files=("train.py",), calls=(call,))


def test_in_each_step(findings: Findings) -> None:
    (finding,) = findings(CAUSE, script("training"))
    assert finding.severity is Severity.WARNING
    assert "train.py:38 (`group = dist.new_group([0, 1])`)" in finding.because


@pytest.mark.parametrize("within", [(), ("loop",), ("training", "condition")])
def test_quiet(findings: Findings, within: tuple[Within, ...]) -> None:
    assert findings(CAUSE, script(*within)) == ()
