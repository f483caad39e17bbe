from __future__ import annotations

import pytest

from ddoctor.evidence.live import LiveLook
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import block, in_collective, in_reduction, look, moving, standing
from tests.training_run import user

CAUSE = "rank0-only-collective"


@pytest.mark.parametrize(
    "text",
    [
        "if rank == 0:",
        "if dist.get_rank() == 0 and step % 100 == 0:",
        "if accelerator.is_main_process:",
        "if accelerator.is_local_main_process:",
        "if self.args.local_rank in (-1, 0):",
        "if trainer.is_world_process_zero():",
        "if self.trainer.is_global_zero:",
        "if is_master:",
    ],
)
def test_a_collective_that_only_rank_0_comes_to(findings: Findings, text: str) -> None:
    inside = in_collective(0, "all_gather", 50, (block(49, 51, text),))
    (finding,) = findings(CAUSE, look(inside, in_reduction(1), in_reduction(2)))
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == (0,)
    assert f"rank 0 waits in all_gather at train.py:50 in train, inside `{text}`" in (
        finding.because
    )
    assert "which ranks 1-2 do not run; ranks 1-2 wait in backward at train.py:40" in (
        finding.because
    )


RANK_0 = block(49, 51, "if rank == 0:")


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # A condition that is no rank's; a loop over ranks; all are in it; one is elsewhere.
        look(
            in_collective(0, "barrier", 50, (block(49, 51, "if step % 100 == 0:"),)),
            in_reduction(1),
        ),
        look(
            in_collective(0, "barrier", 50, (block(49, 51, "for rank in range(world):"),)),
            in_reduction(1),
        ),
        look(in_collective(0, "barrier", 50, (RANK_0,)), in_reduction(1, (RANK_0,))),
        look(in_collective(0, "barrier", 50, (RANK_0,)), standing(1, "rest", user(60))),
        look(in_collective(0, "barrier", 50), in_collective(1, "all_reduce", 60)),
        look(in_collective(0, "barrier", 50, (RANK_0,)), in_reduction(1), seconds=2.0),
    ],
)
def test_quiet(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
