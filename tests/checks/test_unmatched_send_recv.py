from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import block, in_collective, in_reduction, look, moving, standing
from tests.training_run import ENGINE, ending, library, run, user

CAUSE = "unmatched-send-recv"
SENDS, RECEIVES = block(49, 50, "if rank == 0:"), block(51, 52, "else:")


def handled(number: int, begun: str) -> LiveRank:
    """A rank that waits for what another line has begun; its own line has no frame of torch."""
    rank = standing(number, "collective", user(52, "request.wait()", "train"))
    met = msgspec.structs.replace(rank.activities[0], makes=begun)
    return msgspec.structs.replace(rank, activities=(met,))


@pytest.mark.parametrize(
    ("live", "why", "confidence"),
    [
        (
            look(in_collective(0, "send", 50), in_collective(1, "send", 50)),
            "ranks 0-1 wait in send at train.py:50 in train: each sends first, and none receives",
            Confidence.CERTAIN,
        ),
        (
            look(in_collective(0, "recv", 50, (SENDS,)), in_collective(1, "recv", 52, (RECEIVES,))),
            "each receives, and none sends",
            Confidence.CERTAIN,
        ),
        (look(handled(0, "recv"), handled(1, "recv")), "none sends", Confidence.CERTAIN),
        (
            look(in_collective(0, "send", 50, (SENDS,)), in_collective(1, "recv", 52, (RECEIVES,))),
            "what one sends is not what the other expects",
            Confidence.LIKELY,
        ),
    ],
)
def test_all_ranks_send_or_receive(
    findings: Findings, live: LiveLook, why: str, confidence: Confidence
) -> None:
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.ERROR
    assert finding.confidence is confidence
    assert why in finding.because
    assert finding.where.ranks == ()
    assert any("batch_isend_irecv" in one.paste for one in finding.fixes) is (
        confidence is Confidence.CERTAIN
    )


def test_a_message_whose_other_end_is_missing() -> None:
    live = look(in_reduction(0), in_collective(1, "recv", 50, (block(49, 50, "if rank == 1:"),)))
    (finding,) = engine.examine(Evidence([live]), "attach").findings
    assert finding.cause == CAUSE
    assert finding.where.ranks == (1,)
    assert "rank 0 has left the other end of that message out" in finding.because


def test_a_loop_over_messages_is_none_over_batches() -> None:
    loops = (block(10, 60, "for step in range(100):"), block(48, 52, "for one in pending:"))
    later = standing(1, "collective", user(58, "dist.barrier()", "train"), within=loops[:1])
    live = look(in_collective(0, "recv", 50, loops), later)
    (finding,) = engine.examine(Evidence([live]), "attach").findings
    assert finding.cause == CAUSE
    assert finding.where.ranks == (0,)


@pytest.mark.parametrize(
    ("live", "cause"),
    [
        # Rank 0 alone calls a collective, and a receiver waits for it as well.
        (
            look(
                in_collective(0, "all_gather", 60, (block(59, 60, "if rank == 0:"),)),
                in_collective(1, "recv", 52),
            ),
            "rank0-only-collective",
        ),
        (look(in_collective(0, "barrier", 60), in_reduction(1)), "rank-dependent-control-flow"),
        (
            look(standing(0, "rest", user(70, "read()")), in_collective(1, "recv", 52)),
            "rank-stuck-outside-collective",
        ),
    ],
)
def test_another_cause_of_the_same_wait(findings: Findings, live: LiveLook, cause: str) -> None:
    assert findings(CAUSE, live) == ()
    assert engine.examine(Evidence([live]), "attach").findings[0].cause == cause


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        look(in_collective(0, "send", 50), moving(1)),
        # Too short to tell; the other rank was not seen; all are in one collective.
        look(in_collective(0, "send", 50), in_collective(1, "send", 50), seconds=2.0),
        look(in_collective(0, "send", 50), missing=(1,)),
        look(in_collective(0, "all_reduce", 50), in_collective(1, "all_reduce", 50)),
        look(handled(0, ""), handled(1, "all_reduce")),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


def test_a_recorded_handle() -> None:
    every = (
        ending(one, "hung", doing="irecv", doing_seconds=31.0, stack=(user(44, "work.wait()"),))
        for one in range(2)
    )
    (finding,) = engine.examine(Evidence([run(*every)]), "run").findings
    assert finding.cause == CAUSE
    assert "ranks 0-1 wait in recv at train.py:44" in finding.because


def hung(rank: int, function: str, line: int, **fields: Any) -> RankEnding:
    inner = library("torch/distributed/distributed_c10d.py", 2753, function)
    stack = (user(line, f"dist.{function}(x, peer)"), inner)
    return ending(rank, "hung", doing=function, doing_seconds=31.0, stack=stack, **fields)


def test_a_recorded_run() -> None:
    section = run(hung(0, "send", 44, within=(SENDS,)), hung(1, "recv", 45, within=(RECEIVES,)))
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == CAUSE
    assert finding.confidence is Confidence.LIKELY
    assert "rank 0 waits in send at train.py:44" in finding.because


@pytest.mark.parametrize(
    "section",
    [
        run(hung(0, "all_reduce", 44), hung(1, "barrier", 50)),
        run(ending(0, "finished"), ending(1, "finished")),
        run(hung(0, "send", 44), ending(1, "hung", doing="rest", stack=(user(9, "read()"),))),
        run(
            ending(0, "hung", doing="backward", stack=(user(40), ENGINE)),
            hung(1, "all_reduce", 44),
        ),
    ],
)
def test_quiet_on_a_recorded_run(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()
