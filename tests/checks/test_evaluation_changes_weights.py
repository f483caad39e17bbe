from __future__ import annotations

import pytest

from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import lines

CAUSE = "evaluation-changes-weights"


def use(*ranks: tuple[int, int, int]) -> RankUse:
    flags = (
        RankFlags(
            rank=rank,
            evaluations=evaluations,
            evaluations_with_changes=changed,
            changed_otherwise=otherwise,
        )
        for rank, (evaluations, changed, otherwise) in enumerate(ranks)
    )
    return RankUse(hosts=(), flags=tuple(flags))


def test_after_each_evaluation(findings: Findings) -> None:
    met = lines({("evaluation", 40, "validate(model)"): 3})
    (finding,) = findings(CAUSE, use((3, 3, 0), (3, 3, 0)), met)
    assert finding.severity is Severity.WARNING
    assert "of 3 evaluations at train.py:40 in main (`validate(model)`)" in finding.because


def test_without_lines(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use((2, 2, 0)))
    assert "after each of 2 evaluations, the training continued" in finding.because


@pytest.mark.parametrize(
    "ranks",
    [
        (),
        ((0, 0, 0), (0, 0, 0)),
        ((3, 0, 0), (3, 0, 0)),
        # The best weights are loaded now and then; a single one; steps change them as well.
        ((3, 2, 0), (3, 2, 0)),
        ((1, 1, 0), (1, 1, 0)),
        ((3, 3, 1), (3, 3, 1)),
        # Replicas that differ are another cause.
        ((3, 3, 0), (0, 0, 0)),
    ],
)
def test_quiet(findings: Findings, ranks: tuple[tuple[int, int, int], ...]) -> None:
    assert findings(CAUSE, use(*ranks)) == ()
