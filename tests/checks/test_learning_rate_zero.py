from __future__ import annotations

import pytest

from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import USUAL, steps

CAUSE = "learning-rate-zero"


def use(*ranks: int) -> RankUse:
    flags = tuple(RankFlags(rank=rank, zero_steps=zero) for rank, zero in enumerate(ranks))
    return RankUse(hosts=(), flags=flags)


def test_on_all_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(40, 41), steps(USUAL, USUAL, count=60))
    assert finding.severity is Severity.ERROR
    assert "in the last 40 steps" in finding.because


def test_since_the_beginning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(63, 63), steps(USUAL, USUAL, count=60))
    assert finding.severity is Severity.WARNING
    assert "in the first 63 steps" in finding.because
    assert "step + 1" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("ranks", "count"), [((), 60), ((0, 0), 60), ((40, 0), 60), ((12, 12), 60), ((24, 24), 400)]
)
def test_quiet(findings: Findings, ranks: tuple[int, ...], count: int) -> None:
    """Not on one rank alone, nor at the end of a schedule."""
    assert findings(CAUSE, use(*ranks), steps(USUAL, USUAL, count=count)) == ()
