from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Unseen
from ddoctor.evidence.source_facts import SourcePairs
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "pairs-of-other-ranks"
UNSEEN = Unseen(what="loop.py", why="it is too large")
PAIRS = SourcePairs(
    at=SourceLine(file="train.py", line=30, text="loss = F.cross_entropy(a @ every.t(), targets)"),
    targets=SourceLine(file="train.py", line=29, text="targets = torch.arange(len(a))"),
)


def test_targets_that_begin_at_0(findings: Findings) -> None:
    (finding,) = findings(CAUSE, Script(files=("train.py",), pairs_of_rank0=(PAIRS,)))
    assert finding.severity is Severity.ERROR
    assert "on each rank (train.py:29 (`targets = torch.arange(len(a))`))" in finding.because
    assert "get_rank() * samples" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "script",
    [
        Script(files=("train.py",)),
        Script(files=("train.py",), pairs_of_rank0=(PAIRS,), unseen=(UNSEEN,)),
    ],
)
def test_quiet(findings: Findings, script: Script) -> None:
    assert findings(CAUSE, script) == ()
