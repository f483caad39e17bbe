from __future__ import annotations

import pytest

from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import USUAL, steps

CAUSE = "autocast-entered-again"
MIB = 2**20


def use(casts: int, parameters: int, mebibytes: int, gpu: str = "") -> RankUse:
    flags = (
        RankFlags(
            rank=rank,
            casts=casts,
            cast_parameters=parameters,
            cast_bytes=mebibytes * MIB,
            device_name=gpu,
        )
        for rank in range(2)
    )
    return RankUse(hosts=(), flags=tuple(flags))


def test_a_context_for_each_time_step(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(240, 10, 200))
    assert finding.severity is Severity.WARNING
    assert "each of 10 weights is cast 24 times in a step, 200 MiB in all" in finding.because


@pytest.mark.parametrize(
    "flags",
    [
        use(0, 0, 0),
        # Once each; for three losses; little of the step; on a GPU.
        use(10, 10, 200),
        use(30, 10, 200),
        use(240, 10, 20),
        use(240, 10, 200, gpu="H100"),
    ],
)
def test_quiet(findings: Findings, flags: RankUse) -> None:
    assert findings(CAUSE, steps(USUAL, USUAL), flags) == ()
