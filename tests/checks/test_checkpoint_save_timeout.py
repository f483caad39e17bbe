from __future__ import annotations

import pytest

from ddoctor.evidence.live import LiveLook
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import in_collective, look, moving
from tests.training_run import user

CAUSE = "checkpoint-save-timeout"
SAVE = user(20, "torch.save(state, path)", "save")
SAVING = moving(0, {"checkpoint": 100}, asleep=0.6, visits=1, line=SAVE)


def test_one_saves_while_the_others_wait(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(SAVING, *(in_collective(n, "barrier", 12) for n in (1, 2))))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (0,)
    assert "saved a checkpoint at train.py:20 in save for all of the 10 s" in finding.because
    assert "ranks 1-2 wait in barrier at train.py:12" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # It comes to the others now and then; they do something else, too; it does not save.
        look(moving(0, {"checkpoint": 80, "collective": 20}), in_collective(1, "barrier", 12)),
        look(SAVING, moving(1, {"collective": 60, "forward": 40}, asleep=0.6)),
        look(moving(0, {"rest": 100}, visits=1), in_collective(1, "barrier", 12)),
        look(SAVING),
    ],
)
def test_quiet(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
