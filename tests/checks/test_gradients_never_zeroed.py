from __future__ import annotations

import pytest

from ddoctor.evidence.steps import HotLine, Lines, RankLines
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "gradients-never-zeroed"
LINES = Lines(
    ranks=(
        RankLines(
            rank=0,
            samples=40,
            lines=(
                HotLine(
                    phase="optimizer",
                    file="/home/me/train.py",
                    line=30,
                    function="<module>",
                    text="optimizer.step()",
                    samples=4,
                ),
            ),
        ),
    )
)


def use(*ranks: bool) -> RankUse:
    flags = (RankFlags(rank=rank, never_zeroed=one) for rank, one in enumerate(ranks))
    return RankUse(hosts=(), flags=tuple(flags))


def test_on_all_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(True, True), LINES)
    assert finding.severity is Severity.ERROR
    assert "the step is at train.py:30 (`optimizer.step()`)" in finding.because


def test_without_lines(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(True, True))
    assert finding.because.endswith("added its own")


@pytest.mark.parametrize("ranks", [(), (False, False), (True, False)])
def test_quiet(findings: Findings, ranks: tuple[bool, ...]) -> None:
    assert findings(CAUSE, use(*ranks), LINES) == ()
