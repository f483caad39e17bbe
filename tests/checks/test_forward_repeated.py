from __future__ import annotations

import pytest

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import RankFlags, RankUse, Repeat
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import USUAL, steps

CAUSE = "forward-repeated"
LINE = Frame(file="/home/me/train.py", line=79, function="compute_loss", text="h = encoder(ids)")


def use(*seconds: float, random: bool = False) -> RankUse:
    flags = (
        RankFlags(
            rank=rank,
            repeat=Repeat(line=LINE, random=random, seconds=one) if one else None,
        )
        for rank, one in enumerate(seconds)
    )
    return RankUse(hosts=(), flags=tuple(flags))


def test_the_second_time_is_for_nothing(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.014, 0.013))
    assert finding.severity is Severity.WARNING
    assert "at train.py:79 in compute_loss (`h = encoder(ids)`), 13 ms forwards" in finding.because


def test_dropout_may_be_wanted(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.014, 0.013, random=True))
    assert finding.severity is Severity.NOTE
    assert "if dropout shall make them differ" in finding.because


def test_a_parametrization_at_each_use(findings: Findings) -> None:
    flags = tuple(
        RankFlags(rank=rank, repeat=Repeat(line=LINE, random=False, seconds=0.014, weights=47))
        for rank in range(2)
    )
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), RankUse(hosts=(), flags=flags))
    assert finding.severity is Severity.WARNING
    assert "computes the same weight 48 times in each step at train.py:79" in finding.because
    assert "parametrize.cached()" in finding.fixes[0].paste


@pytest.mark.parametrize("seconds", [(), (0.0, 0.0), (0.014, 0.0), (0.002, 0.002)])
def test_quiet(findings: Findings, seconds: tuple[float, ...]) -> None:
    assert findings(CAUSE, steps(USUAL, USUAL), use(*seconds)) == ()
