from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import AddedHooks, Growth, MemoryOverTime
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_run import user

CAUSE = "hooks-added-each-step"
LINE = user(47, "layer.register_forward_hook(keep)", "features")


def memory(number: int, *, steps: int = 60, last: int | None = None) -> MemoryOverTime:
    numbers = (number, number if last is None else last)
    growth = Growth(
        rank=0, host="a", times=(0.0, 9.0), steps=(2, 2 + steps), resident=(500.0, 510.0)
    )
    return MemoryOverTime(
        ranks=tuple(
            replace(growth, rank=rank, hooks=AddedHooks(number=one, line=LINE) if one else None)
            for rank, one in enumerate(numbers)
        )
    )


@pytest.mark.parametrize(("number", "each"), [(240, "4"), (60, "1"), (30, "0.5")])
def test_more_in_each_step(findings: Findings, number: int, each: str) -> None:
    (finding,) = findings(CAUSE, memory(number))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert f"all ranks have {number} hooks more than 60 steps before" in finding.because
    assert f"{each} in each step, by train.py:47 in features" in finding.because


def test_on_one_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, memory(60, last=0))
    assert finding.where.ranks == (0,)


@pytest.mark.parametrize("seen", [memory(0), memory(4), memory(9, steps=9), memory(12)])
def test_quiet(findings: Findings, seen: MemoryOverTime) -> None:
    assert findings(CAUSE, seen) == ()


@pytest.mark.parametrize(("number", "found"), [(12, 1), (60, 1), (0, 0)])
def test_the_source_says_so_and_the_run_added_some(
    findings: Findings, number: int, found: int
) -> None:
    at = SourceLine(file="train.py", line=47, text="layer.register_forward_hook(keep)")
    script = Script(files=("train.py",), repeated_hooks=(at,))
    assert len(findings(CAUSE, memory(number), script)) == found
