from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import block, in_collective, look, moving
from tests.training_run import ENGINE, ending, run, user

CAUSE = "late-rank-timeout"
TOKENS = user(20, "tokens = [encode(text) for text in texts]", "prepare")
PREPARING = moving(0, {"rest": 100}, asleep=0.0, visits=1, line=TOKENS)


def test_a_rank_that_prepares_while_the_others_wait(findings: Findings) -> None:
    others = [in_collective(number, "barrier", 12) for number in (1, 2)]
    (finding,) = findings(CAUSE, look(PREPARING, *others))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (0,)
    assert "train.py:20 in prepare (`tokens = [encode(text) for text in texts]`)" in finding.because
    assert "ranks 1-2 wait in barrier at train.py:12" in finding.because


@pytest.mark.parametrize(
    ("loops", "asked"),
    [
        (["while abs(value - last) > tolerance:"], True),
        (["for batch in loader:", "while True:"], True),
        (["while True:", "for batch in loader:"], False),
        (["while True:", "if rank == 0:"], True),
        ([], False),
    ],
)
def test_a_loop_that_may_not_end(findings: Findings, loops: list[str], asked: bool) -> None:
    within = tuple(block(line, 30, text) for line, text in enumerate(loops, 10))
    rank = msgspec.structs.replace(
        PREPARING,
        activities=(msgspec.structs.replace(PREPARING.activities[0], within=within),),
    )
    (finding,) = findings(CAUSE, look(rank, in_collective(1, "barrier", 12)))
    assert ("ends at all" in finding.fixes[0].summary) is asked


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # It comes to the others now and then; they do something else, too; it sleeps.
        look(moving(0, {"rest": 80, "collective": 20}), in_collective(1, "barrier", 12)),
        look(PREPARING, moving(1, {"collective": 60, "forward": 40}, asleep=0.6)),
        look(moving(0, {"rest": 100}, asleep=0.9, visits=1), in_collective(1, "barrier", 12)),
        # All start; it saves; nobody waits for it.
        look(moving(0, {"import": 100}, asleep=0.0, visits=1), in_collective(1, "barrier", 12)),
        look(moving(0, {"checkpoint": 100}, asleep=0.0), in_collective(1, "barrier", 12)),
        # It is slow at a step.
        look(moving(0, {"forward": 100}, asleep=0.0, visits=1), in_collective(1, "barrier", 12)),
        look(PREPARING),
        look(PREPARING, moving(1, {"rest": 100}, asleep=0.0)),
    ],
)
def test_quiet(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


WAITED = ending(
    0,
    "interrupted",
    doing="DDP's gradient reduction",
    doing_seconds=60.0,
    busy=False,
    stack=(user(43), ENGINE),
)
SEARCHING = ending(
    1,
    "interrupted",
    doing="rest",
    doing_seconds=60.0,
    busy=True,
    stack=(user(50), user(21, "better = improve(value)", "root")),
    within=(block(20, 30, "while True:"),),
)


def test_work_that_somebody_interrupted(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(WAITED, SEARCHING))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (1,)
    assert (
        "rank 1 (pid 101 on a) had worked at train.py:21 in root (`better = improve(value)`) for "
        "60 s when the run was ended; rank 0 waited in DDP's gradient reduction"
    ) in finding.because
    assert "while True:" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        # It moved until then; all worked; all waited; it slept; the run was not interrupted.
        run(replace(WAITED, busy=None), SEARCHING),
        run(replace(SEARCHING, rank=0), SEARCHING),
        run(WAITED, replace(WAITED, rank=1)),
        run(WAITED, replace(SEARCHING, busy=False)),
        run(replace(WAITED, outcome="failed"), SEARCHING),
    ],
)
def test_quiet_on_other_ends(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()
