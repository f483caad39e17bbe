from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import look, moving
from tests.training_steps import COUNT, USUAL, every, lines, steps, with_more

CAUSE = "checkpoint-stall"
WITHOUT = with_more("checkpoint", 0.0)


def test_rank_0_saves_while_the_other_waits(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(with_more("checkpoint", every(10, 0.5)), WITHOUT))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (0,)
    assert "rank 0 saved a checkpoint in 3 of 30 steps, 0.5 s each time" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.05 / 0.155, abs=0.01)


def test_all_ranks_save(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(*[with_more("checkpoint", every(5, 0.2))] * 4, noise=0.02))
    assert finding.where.ranks == ()
    assert finding.because.startswith("all ranks")


def test_one_rank_alone(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(with_more("checkpoint", every(5, 0.2))))
    assert finding.because.startswith("rank 0")


def test_the_copy_before_and_the_disk_after_are_part_of_it(findings: Findings) -> None:
    saves = with_more("rest", every(10, 0.3), with_more("checkpoint", every(10, 0.1)))
    (finding,) = findings(CAUSE, steps(saves, WITHOUT))
    assert "0.4 s each time" in finding.because


def test_the_line_and_the_interval(findings: Findings) -> None:
    section = steps(with_more("checkpoint", every(10, 0.5)), WITHOUT)
    met = lines({("checkpoint", 44, "torch.save(state, path)"): 9}, {})
    run = TrainingRun(command=("train.py",), seconds=9.0, ranks=(), framework="transformers")
    (finding,) = findings(CAUSE, section, met, run)
    assert "train.py:44, `torch.save(state, path)`" in finding.because
    asynchronous, seldom = finding.fixes
    assert "dcp.async_save(" in asynchronous.paste
    assert "save_steps=477" in seldom.paste  # 0.5 s are 1 % of 477 steps of 105 ms


def test_it_is_told_in_place_of_extra_work() -> None:
    saves = with_more("rest", every(5, 0.3), with_more("checkpoint", every(5, 0.1)))
    report = engine.examine(Evidence([steps(saves, WITHOUT)]), "run")
    assert [one.cause for one in report.findings] == [CAUSE]


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL),
        steps(WITHOUT, WITHOUT, noise=0.2),
        # Little; once, so that nobody knows how often; work of another kind.
        steps(with_more("checkpoint", every(10, 0.05)), WITHOUT),
        steps(with_more("checkpoint", every(COUNT, 3.0)), WITHOUT),
        steps(with_more("rest", every(10, 0.5)), USUAL),
        steps(with_more("evaluation", every(10, 0.5)), USUAL),
        steps(with_more("checkpoint", every(3, 0.5, count=9)), WITHOUT, count=9),
    ],
)
def test_quiet(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section) == ()


SAVING = {"checkpoint": 30, "forward": 30, "backward-or-wait": 30, "optimizer": 10}


def test_a_live_rank_that_saves_again_and_again(findings: Findings) -> None:
    waiting = moving(1, {"backward-or-wait": 70, "forward": 30}, asleep=0.5)
    (finding,) = findings(CAUSE, look(moving(0, SAVING, visits=5), waiting))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (0,)
    assert "rank 0 saved a checkpoint at train.py:40" in finding.because
    assert "30% of 10 s, 5 times" in finding.because
    assert "async_save" in finding.fixes[0].paste


def test_short_saves_that_a_live_rank_repeats(findings: Findings) -> None:
    short = {"checkpoint": 7, "forward": 93}
    (finding,) = findings(CAUSE, look(moving(0, short, visits=4), moving(1)))
    assert finding.severity is Severity.WARNING
    assert "7% of 10 s, 4 times" in finding.because


def test_a_checkpoint_that_a_look_happens_to_meet_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(*(moving(one, SAVING, visits=1) for one in range(2))))
    assert finding.severity is Severity.NOTE
    assert finding.where.ranks == ()


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        look(moving(0, {"checkpoint": 5, "forward": 95})),
        look(moving(0, {"checkpoint": 9, "forward": 9})),
        look(moving(0, {"checkpoint": 7, "forward": 93}, visits=2)),
        look(moving(0, {"checkpoint": 4, "forward": 96}, visits=4)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
