from __future__ import annotations

import pytest

from ddoctor.evidence.training import EvaluationMode, RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "trains-in-evaluation-mode"


def mode(steps: int, *, before: bool) -> EvaluationMode:
    return EvaluationMode(name="Net", steps=steps, trained_before=before, layers=("Dropout",))


def use(*ranks: EvaluationMode | None) -> RankUse:
    flags = tuple(RankFlags(rank=rank, evaluation_mode=one) for rank, one in enumerate(ranks))
    return RankUse(hosts=(), flags=flags)


def test_left_by_an_evaluation(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(mode(40, before=True), mode(41, before=True)))
    assert finding.severity is Severity.WARNING
    assert "Net learns in evaluation mode since 40 steps, and was in training" in finding.because
    assert finding.because.endswith("Dropout")
    assert finding.where.ranks == ()


def test_on_the_rank_that_evaluates(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(mode(40, before=True), None))
    assert finding.where.ranks == (0,)


def test_from_the_beginning_it_may_be_wanted(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(mode(60, before=False), mode(60, before=False)))
    assert finding.severity is Severity.NOTE
    assert "in all steps so far" in finding.because


@pytest.mark.parametrize("ranks", [(), (None, None), (mode(5, before=True), None)])
def test_quiet(findings: Findings, ranks: tuple[EvaluationMode | None, ...]) -> None:
    assert findings(CAUSE, use(*ranks)) == ()
