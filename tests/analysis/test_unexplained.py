"""Large shares of the time without a finding."""

from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.analysis import unexplained
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.models import Confidence, Cost, Finding, Severity
from tests.live_look import TRAINING, look, moving
from tests.training_steps import USUAL, lines, steps, with_more

AT = lines({("rest", 31, "shuffle(words)"): 40})


def costing(share: float) -> Finding:
    return Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because="it costs",
        cost=Cost(value=share, unit="share of step"),
    )


@pytest.mark.parametrize("phase", ["loader", "checkpoint", "evaluation", "gc", "rest"])
def test_a_part_of_the_step_on_each_rank(phase: str) -> None:
    work = with_more(phase, 0.06) if phase in USUAL else {**USUAL, phase: 0.06}
    (told,) = unexplained.in_steps(steps(work, work), None, ())
    assert "% of the step on rank 0" in told


def test_the_line_is_named() -> None:
    (told,) = unexplained.in_steps(steps(with_more("rest", 0.06)), AT, ())
    assert told.endswith(":31, `shuffle(words)`")


def test_an_evaluation_is_named_by_the_call_that_begins_it() -> None:
    begins = Frame(file="train.py", line=50, function="train", text="losses = check(model)")
    met = lines({("evaluation", 5, "x = self.pool(x)"): 20, ("evaluation", 9, "self.last(x)"): 30})
    rows = tuple(msgspec.structs.replace(one, calls=(begins,)) for one in met.ranks[0].lines)
    met = Lines(ranks=(msgspec.structs.replace(met.ranks[0], lines=rows),))
    (told,) = unexplained.in_steps(steps(with_more("evaluation", 0.06)), met, ())
    assert told.endswith("train.py:50, `losses = check(model)`")


def test_a_rank_that_computes_for_longer() -> None:
    ranks = (USUAL, USUAL, with_more("forward", 0.09))
    (told,) = unexplained.in_steps(steps(*ranks), None, ())
    assert told.startswith("rank 2 computes")


@pytest.mark.parametrize(
    ("section", "found", "met"),
    [
        (steps(USUAL, USUAL), (), None),
        (steps(with_more("rest", 0.02)), (), AT),
        (steps(with_more("rest", 0.06)), (costing(0.3),), AT),
        (steps(with_more("rest", 0.06), count=9), (), AT),
    ],
)
def test_quiet(section: Steps, found: tuple[Finding, ...], met: Lines | None) -> None:
    assert list(unexplained.in_steps(section, met, found)) == []


def test_in_a_live_run() -> None:
    saves = {"forward": 30, "backward-or-wait": 30, "checkpoint": 40}
    live = look(moving(0, saves), moving(1, saves))
    report = engine.examine(Evidence([live]), "attach")
    costs = [one.cost for one in report.findings if one.cost is not None]
    assert report.unexplained or any(cost.value >= 0.2 for cost in costs)


def test_quiet_in_a_live_run() -> None:
    report = engine.examine(Evidence([look(moving(0, TRAINING), moving(1, TRAINING))]), "attach")
    assert report.unexplained == ()
