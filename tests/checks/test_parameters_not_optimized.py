from __future__ import annotations

from typing import Literal

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceTeacher
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "parameters-not-optimized"
NAMES = tuple(f"module.encoder.{one}.weight" for one in range(5))


def wrapping(
    *ranks: tuple[str, ...], kind: Literal["none", "ddp", "fsdp1", "fsdp2"] = "ddp"
) -> Wrapping:
    wrappers = (
        Wrapper(
            rank=rank,
            kind=kind,
            name="Net",
            parameters=100,
            parameter_bytes=400,
            trainable_bytes=400,
            untrained=names,
        )
        for rank, names in enumerate(ranks)
    )
    return Wrapping(wrappers=tuple(wrappers))


def test_an_encoder_that_no_optimizer_has(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(NAMES, NAMES))
    assert finding.severity is Severity.WARNING
    assert finding.because.startswith("5 parameters of Net get gradients")
    assert finding.because.endswith("module.encoder.2.weight and 2 more")
    assert 'begin with "module."' in finding.fixes[0].caution


LINE = SourceLine(file="train.py", line=61, text="module.requires_grad = flag")
FROZEN = Script(files=("train.py",), frozen_in_vain=(LINE,))


def test_a_module_that_is_frozen_by_an_attribute(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(NAMES, NAMES), FROZEN)
    assert "train.py:61 (`module.requires_grad = flag`) sets an attribute" in finding.because
    assert finding.fixes[0].paste == "model.encoder.requires_grad_(False)"
    # Before a run, and in a live one.
    (finding,) = findings(CAUSE, FROZEN)
    assert finding.severity is Severity.WARNING
    assert finding.title.startswith("A module is frozen by an attribute")
    assert "train.py:61" in finding.because


def test_a_teacher_is_to_be_frozen(findings: Findings) -> None:
    at = SourceLine(file="train.py", line=60, text="guide = teacher(x)")
    mode = SourceLine(file="train.py", line=9, text="teacher.eval()")
    script = Script(files=("train.py",), teachers=(SourceTeacher(at=at, mode=mode),))
    (finding,) = findings(CAUSE, wrapping(NAMES, NAMES), script)
    assert [fix.summary.startswith("freeze") for fix in finding.fixes] == [True, False]
    (finding,) = findings(CAUSE, wrapping(NAMES, NAMES))
    assert [fix.summary.startswith("or freeze") for fix in finding.fixes] == [False, True]
    # In a model of its own, which no wrapper and no optimizer has.
    (finding,) = findings("gradients-discarded", script, wrapping((), ()))
    assert finding.because.startswith("train.py:60 (`guide = teacher(x)`) calls a model that no")
    assert findings("gradients-discarded", script, wrapping(NAMES, NAMES)) == ()


def test_without_ddp_there_is_no_prefix(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(NAMES[:1], NAMES[:1], kind="none"))
    assert finding.because.endswith("module.encoder.0.weight")
    assert finding.fixes[0].caution == ""


@pytest.mark.parametrize("ranks", [(), ((), ()), (NAMES, ())])
def test_quiet(findings: Findings, ranks: tuple[tuple[str, ...], ...]) -> None:
    assert findings(CAUSE, wrapping(*ranks)) == ()
