"""Mistakes in the order of a training step that the source alone shows."""

from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceDiscarded, SourceReplaced, SourceZeroed
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings


def line(text: str) -> SourceLine:
    return SourceLine(file="train.py", line=30, text=text, function="main")


STEP = line("optimizer.step()")
SHOWN = {
    "optimizer-made-each-step": Script(
        files=("train.py",), remade_optimizers=(line("optimizer = Adam(weights)"),)
    ),
    "hooks-added-each-step": Script(
        files=("train.py",), repeated_hooks=(line("layer.register_forward_hook(keep)"),)
    ),
    "gradients-never-zeroed": Script(files=("train.py",), never_zeroed=STEP),
    "optimizer-without-gradients": Script(
        files=("train.py",),
        zeroed_early=(SourceZeroed(at=line("optimizer.zero_grad()"), step=STEP),),
    ),
    "gradients-discarded": Script(
        files=("train.py",),
        discarded_passes=(SourceDiscarded(made=line("fake = G(z)"), at=line("D(fake)")),),
    ),
    "parameters-not-optimized": Script(
        files=("train.py",),
        replaced_layers=(
            SourceReplaced(at=line("model.head = nn.Linear(8, 20)"), optimizer=line("Adam()")),
        ),
    ),
    "trains-in-evaluation-mode": Script(
        files=("train.py",), left_in_evaluation=(line("model.eval()"),)
    ),
}
RECORDED = (
    RankUse(hosts=(), flags=(RankFlags(rank=0), RankFlags(rank=1))),
    MemoryOverTime(
        ranks=(Growth(rank=0, host="a", steps=(0, 60), times=(0.0, 9.0), resident=(800.0, 800.0)),)
    ),
)


@pytest.mark.parametrize("cause", SHOWN)
def test_in_the_source(findings: Findings, cause: str) -> None:
    (finding,) = findings(cause, SHOWN[cause])
    note = cause == "gradients-discarded"
    assert (finding.severity is Severity.NOTE) is note
    assert finding.confidence is Confidence.LIKELY
    assert "train.py:30 (`" in finding.because


@pytest.mark.parametrize("cause", SHOWN)
def test_quiet_about_another_source(findings: Findings, cause: str) -> None:
    assert findings(cause, Script(files=("train.py",))) == ()


@pytest.mark.parametrize(
    "cause", sorted(SHOWN.keys() - {"parameters-not-optimized", "gradients-discarded"})
)
def test_quiet_where_a_recorded_run_does_not_show_it(findings: Findings, cause: str) -> None:
    assert findings(cause, SHOWN[cause], *RECORDED) == ()
