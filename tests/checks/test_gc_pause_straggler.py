from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.evidence.wrapping import Calls, CollectiveCalls
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import LINE, TRAINING, look, moving, standing
from tests.training_run import user
from tests.training_steps import COUNT, USUAL, every, lines, steps, with_more

CAUSE = "gc-pause-straggler"


def by_turns(ranks: int, number: int, seconds: float) -> Steps:
    """Each rank collects every so many steps, one after the other."""
    pauses = every(number, seconds)
    return steps(
        *(with_more("gc", pauses[rank:] + pauses[:rank]) for rank in range(ranks)), noise=0.05
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ranks_pause_by_turns(findings: Findings, ranks: int) -> None:
    (finding,) = findings(CAUSE, by_turns(ranks, 6, 0.15))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == ()
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(ranks * 0.025 / (0.105 + ranks * 0.025), abs=0.04)
    assert "gc.freeze()" in finding.fixes[0].paste


def test_one_rank_pauses(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(with_more("gc", 0.0), with_more("gc", every(4, 0.2))))
    assert finding.where.ranks == (1,)


def test_it_is_told_in_place_of_the_straggler() -> None:
    section = steps(with_more("gc", 0.0), with_more("gc", 0.04))
    assert [one.cause for one in engine.examine(Evidence([section]), "run").findings] == [CAUSE]


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL),
        by_turns(2, 10, 0.03),
        steps(with_more("gc", every(COUNT, 2.0)), with_more("gc", 0.0)),
        # One pause of each rank.
        by_turns(2, COUNT, 2.0),
        # Another rank is later still, and in the same steps.
        steps(with_more("gc", 0.04), with_more("forward", 0.06)),
        steps(with_more("rest", every(4, 0.2)), USUAL),
        steps(with_more("gc", 0.04), with_more("gc", 0.0), count=9),
    ],
)
def test_quiet(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section) == ()


def test_quiet_where_the_script_itself_collects(findings: Findings) -> None:
    section = steps(*[with_more("gc", 0.04)] * 2)
    assert findings(CAUSE, section)
    use = RankUse(hosts=(), flags=tuple(RankFlags(rank=rank, collected=COUNT) for rank in (0, 1)))
    assert findings(CAUSE, section, use) == ()
    met = {("gc", 50, "gc.collect()"): 12, ("forward", 20, "model(batch)"): 30}
    assert findings(CAUSE, section, lines(met, met)) == ()


def test_quiet_where_one_line_makes_the_garbage(findings: Findings) -> None:
    section = steps(*[with_more("gc", 0.04)] * 2)
    rounds = {("gc", 50, "rows = [round(v) for v in p]"): 12, ("rest", 50, "rows = [round"): 30}
    assert findings(CAUSE, section, lines(rounds, rounds)) == ()
    # The collections come at many lines, or at one that does nothing else.
    spread = {("gc", number, "x = f(x)"): 5 for number in range(50, 54)} | {("rest", 50, "x"): 9}
    assert findings(CAUSE, section, lines(spread, spread))


def exchanged(operation: str, place: str) -> CollectiveCalls:
    return CollectiveCalls(
        steps=COUNT,
        calls=tuple(
            Calls(
                rank=rank,
                operation=operation,
                place=place,
                of_user=True,
                calls=COUNT,
                bytes=0,
                seconds=0.02 * COUNT,
            )
            for rank in (0, 1)
        ),
    )


def test_quiet_where_the_ranks_exchange_the_objects(findings: Findings) -> None:
    section = steps(with_more("gc", 0.0), with_more("gc", every(4, 0.2)))
    met = lines({}, {("gc", 50, "dist.broadcast_object_list(box)"): 12, ("transfer", 50, "x"): 30})
    assert findings(CAUSE, section, met, exchanged("broadcast_object_list", "train.py:50")) == ()
    for other in (
        exchanged("broadcast_object_list", "train.py:51"),
        exchanged("all_reduce", "train.py:50"),
    ):
        assert findings(CAUSE, section, met, other)
    forward = {("gc", 20, "model(batch)"): 12, ("forward", 20, "model(batch)"): 30}
    assert findings(CAUSE, section, lines(forward, forward))


def test_one_process(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(with_more("gc", 0.04)))
    assert finding.title == "Python's garbage collection pauses the training"
    assert "different steps" not in finding.because


COLLECTING = {**TRAINING, "gc": 25}


@pytest.mark.parametrize(
    ("both", "ranks"), [(True, ()), (False, (1,))], ids=["by turns", "one of them"]
)
def test_in_a_live_run(findings: Findings, both: bool, ranks: tuple[int, ...]) -> None:
    live = look(moving(0, COLLECTING if both else TRAINING), moving(1, COLLECTING))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == ranks
    assert "20% of the time" in finding.because
    assert "gc.freeze()" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        look(moving(0, {**TRAINING, "gc": 5}), moving(1, {**TRAINING, "gc": 5})),
        look(moving(0), moving(1, COLLECTING, visits=1)),
        look(
            moving(0, COLLECTING, line=user(12, "gc.collect()", "train")),
            moving(1, COLLECTING, line=user(12, "gc.collect()", "train")),
        ),
        look(standing(0, "gc", LINE), standing(1, "gc", LINE)),
    ],
    ids=["none", "little", "once", "by the script", "all stand"],
)
def test_quiet_in_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


def test_a_live_rank_that_collects_more_than_others_is_no_straggler(findings: Findings) -> None:
    waiting = {**TRAINING, "collective": 60}
    live = look(moving(0, waiting), moving(1, {**TRAINING, "gc": 60}))
    assert findings("straggler-rank", live) == ()
    (finding,) = findings(CAUSE, live)
    assert finding.where.ranks == (1,)
