from __future__ import annotations

import pytest

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import GivenUp, RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "recompile-limit-reached"
FORWARD = Frame(file="/home/me/net.py", line=12, function="forward", text="def forward(self, x):")


def use(*rows: tuple[GivenUp, ...]) -> RankUse:
    flags = (RankFlags(rank=rank, given_up=one) for rank, one in enumerate(rows))
    return RankUse(hosts=(), flags=tuple(flags))


def given_up(reason: str = "", seconds: float = 20.0) -> tuple[GivenUp, ...]:
    return (GivenUp(frame=FORWARD, times=8, seconds=seconds, reason=reason),)


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("scale == 0.006", "pass numbers that change as tensors"),
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", "let shapes be dynamic"),
        ("", "let shapes be dynamic"),
    ],
)
def test_the_first_fix_fits_the_reason(findings: Findings, reason: str, fix: str) -> None:
    (finding,) = findings(CAUSE, use(given_up(reason), given_up(reason)))
    assert finding.severity is Severity.WARNING
    assert "the function at net.py:12 in forward was compiled 8 times in 20 s" in finding.because
    assert reason in finding.because
    assert finding.where.ranks == ()
    assert finding.fixes[0].summary.startswith(fix)


def test_on_one_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use((), given_up()))
    assert finding.where.ranks == (1,)


@pytest.mark.parametrize("flags", [use(), use((), ())])
def test_quiet(findings: Findings, flags: RankUse) -> None:
    assert findings(CAUSE, flags) == ()
