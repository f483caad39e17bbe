from __future__ import annotations

import pytest

from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import Work, lines, steps

CAUSE = "many-small-operations"
WORK: Work = {"forward": 0.03, "backward": 0.06, "rest": 0.01}
PAIRS = ("rest", 31, "loss = loss + (rows[one] - rows[other]).square().sum()")
MET = {PAIRS: 30, ("forward", 20, "loss = model(batch)"): 20, ("backward", 40, "backward()"): 60}


def use(
    operations: int, *, last: int | None = None, parameters: int = 26, gpu: str = ""
) -> RankUse:
    counts = (operations, operations if last is None else last)
    return RankUse(
        hosts=(),
        flags=tuple(
            RankFlags(rank=rank, device_name=gpu, operations=count, graph_parameters=parameters)
            for rank, count in enumerate(counts)
        ),
    )


def test_a_loop_over_pairs(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(WORK, WORK), lines(MET, MET), use(5200))
    assert finding.severity is Severity.NOTE
    assert "26 parameters through 5,200 operations" in finding.because
    assert "made mostly at train.py:31 in main (`loss = loss + (rows" in finding.because
    assert finding.cost is not None
    assert 0.4 < finding.cost.value < 0.6


@pytest.mark.parametrize(
    "counted",
    [
        # Few; as many as so many parameters have; on one rank alone; on a GPU; not counted.
        use(1500),
        use(5200, parameters=300),
        use(5200, last=300),
        use(5200, gpu="H100"),
        use(0, parameters=0),
    ],
)
def test_quiet(findings: Findings, counted: RankUse) -> None:
    assert findings(CAUSE, steps(WORK, WORK), lines(MET, MET), counted) == ()


def test_quiet_where_the_step_is_long(findings: Findings) -> None:
    long: Work = {"forward": 0.3, "backward": 0.6}
    assert findings(CAUSE, steps(long, long), lines(MET, MET), use(5200)) == ()
