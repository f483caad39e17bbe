from __future__ import annotations

import pytest

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "optimizer-made-each-step"
LINE = Frame(
    file="/home/me/train.py",
    line=30,
    function="train",
    text="optimizer = Adam(model.parameters())",
    of_user=True,
)


def use(*ranks: bool, line: Frame | None = LINE) -> RankUse:
    flags = (
        RankFlags(rank=rank, remade=one, remade_at=line if one else None)
        for rank, one in enumerate(ranks)
    )
    return RankUse(hosts=(), flags=tuple(flags))


def test_on_all_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(True, True))
    assert finding.severity is Severity.WARNING
    assert "train.py:30 in train (`optimizer = Adam(model.parameters())`)" in finding.because


def test_without_a_line(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(True, line=None))
    assert "the same parameters; what it keeps" in finding.because


@pytest.mark.parametrize("ranks", [(), (False, False), (True, False)])
def test_quiet(findings: Findings, ranks: tuple[bool, ...]) -> None:
    assert findings(CAUSE, use(*ranks)) == ()
