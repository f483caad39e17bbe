from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.launched import launch
from tests.source_calls import WRAPS

CAUSE = "effective-batch-lr-mismatch"
TOLD = {
    "ranks": "4",
    "arg.batch_size": "8",
    "arg.lr": "1e-4",
    "arg.steps": "1000",
    "arg.save_freq": "100",
}


def test_a_note_with_the_choices(findings: Findings) -> None:
    (finding,) = findings(CAUSE, launch("accelerate", "train.py", TOLD))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "32 samples, 4 times as many" in finding.because
    scaled, same = finding.fixes
    for part in ("0.0002 (Adam", "0.0004 (SGD", "250", "save_freq      25"):
        assert part in scaled.paste
    assert "micro-batch 2 on each of 4 ranks" in same.paste


def test_accumulation_counts(findings: Findings) -> None:
    told = {**TOLD, "arg.gradient_accumulation_steps": "2"}
    (finding,) = findings(CAUSE, launch("torchrun", "train.py", told))
    assert "64 samples" in finding.because


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": "1"},
        {"arg.batch_size": "auto"},
        {"arg.lr": "auto"},
        {"arg.steps": "-1"},
    ],
)
def test_quiet(findings: Findings, change: dict[str, str]) -> None:
    assert findings(CAUSE, launch("accelerate", "train.py", {**TOLD, **change})) == ()


@pytest.mark.parametrize("name", ["ranks", "arg.batch_size", "arg.lr", "arg.steps"])
def test_quiet_without_a_number(findings: Findings, name: str) -> None:
    told = {key: value for key, value in TOLD.items() if key != name}
    assert findings(CAUSE, launch("accelerate", "train.py", told)) == ()


SUMS = SourceLine(file="train.py", line=18, text="dist.all_reduce(p.grad)")
SUMMED = Script(files=("train.py",), summed_gradients=SUMS)


def test_gradients_that_the_script_adds_up(findings: Findings) -> None:
    (finding,) = findings(CAUSE, SUMMED)
    assert finding.severity is Severity.WARNING
    assert "train.py:18 (`dist.all_reduce(p.grad)`) adds them up" in finding.because


def test_quiet_about_gradients_that_ddp_averages(findings: Findings) -> None:
    assert findings(CAUSE, replace(SUMMED, calls=(WRAPS,))) == ()
    assert findings(CAUSE, Script(files=("train.py",))) == ()
