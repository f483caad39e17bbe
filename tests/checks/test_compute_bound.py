from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.models import Severity, Verdict
from tests.conftest import Findings
from tests.live_look import STARVED, TRAINING, WAITING, in_reduction, look, moving

CAUSE = "compute-bound"
COMPUTING: Mapping[str, int] = {
    "forward": 35,
    "backward-or-wait": 45,
    "optimizer": 15,
    "loader": 2,
    "rest": 3,
}


def test_all_ranks_compute(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(*(moving(one, COMPUTING, asleep=0.02) for one in range(4))))
    assert finding.severity is Severity.NOTE
    assert "all 4 ranks compute for at least 93% of the time" in finding.because
    pastes = "".join(fix.paste for fix in finding.fixes)
    assert "torch.compile" in pastes
    assert "fused=True" in pastes


def test_alone(findings: Findings) -> None:
    met = {**COMPUTING, "optimizer": 5, "forward": 45}
    (finding,) = findings(CAUSE, look(moving(0, met, asleep=0.02)))
    assert "the run computes for at least 93%" in finding.because
    assert not [fix for fix in finding.fixes if "fused" in fix.paste]


def test_such_a_run_is_healthy() -> None:
    live = look(moving(0, COMPUTING), moving(1, COMPUTING))
    report = engine.examine(Evidence([live]), "attach")
    assert report.verdict is Verdict.HEALTHY
    assert [one.cause for one in report.findings] == [CAUSE]


HANDS_OVER = msgspec.structs.replace(moving(1, COMPUTING), on_gpu=True)


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0, TRAINING), moving(1, TRAINING)),
        look(moving(0, COMPUTING), moving(1, TRAINING)),
        look(moving(0, STARVED), moving(1, STARVED)),
        # One is late; they sleep in the backward pass; they are not on a CPU; they stand.
        look(moving(0, WAITING, asleep=0.7), moving(1, COMPUTING)),
        look(moving(0, COMPUTING, asleep=0.4), moving(1, COMPUTING, asleep=0.4)),
        look(moving(0, {**COMPUTING, "backward-or-wait": 0}, asleep=0.6)),
        look(in_reduction(0), in_reduction(1)),
        # A GPU computes, and what it does is not seen; a host was not looked at; few samples.
        look(moving(0, COMPUTING), HANDS_OVER),
        look(moving(0, COMPUTING), missing=(1,)),
        look(moving(0, {"forward": 10})),
    ],
)
def test_quiet(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
