from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Unseen
from ddoctor.evidence.source_facts import SourceGathered
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "gathered-without-gradients"
SIMILAR = SourceLine(file="train.py", line=40, text="logits = features @ every.t()")


def script(text: str, *unseen: Unseen) -> Script:
    at = SourceLine(file="train.py", line=38, text=text)
    return Script(
        files=("train.py",), unseen=unseen, gathered=(SourceGathered(at=at, similar=SIMILAR),)
    )


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("dist.all_gather(others, features)", "torch.cat(all_gather(features))"),
        ("every = self.all_gather(features)", "self.all_gather(features, sync_grads=True)"),
    ],
)
def test_features_that_carry_no_gradient(findings: Findings, text: str, fix: str) -> None:
    (finding,) = findings(CAUSE, script(text))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert f"train.py:38 (`{text}`)" in finding.because
    assert fix in finding.fixes[0].paste


def test_quiet(findings: Findings) -> None:
    assert findings(CAUSE, Script(files=("train.py",))) == ()
    assert (
        findings(
            CAUSE,
            script("dist.all_gather(others, features)", Unseen(what="model.py", why="too long")),
        )
        == ()
    )
