"""A recorded run that tells too little: why, in its first line, and nothing that misleads."""

from __future__ import annotations

from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import Outcome, RankEnding, TrainingRun
from ddoctor.models import JUDGING, Report, Verdict
from ddoctor.report import html, markdown, terminal, training, wording
from tests.report import training_sample

STARTED = ", but in processes that it started itself (38 s of CPU time), where nothing is recorded"


def ended(outcome: Outcome = "finished", steps: int = 0, children: float = 0.0) -> TrainingRun:
    def end(rank: int) -> RankEnding:
        ending = training_sample.ending(rank)
        return replace(ending, outcome=outcome, steps=steps, children_seconds=children)

    return training_sample.run(2, end(0), end(1))


@pytest.mark.parametrize(
    ("run", "judged", "why"),
    [
        (ended(), 0, "the script came to its end, and no optimizer took a step"),
        (ended(children=38.2), 0, STARTED),
        (
            replace(ended("hung"), limit="no optimizer took a step within 20 s"),
            0,
            "no optimizer took a step within 20 s",
        ),
        (ended(steps=12), 7, "it came to its end after 12 steps; 7 of them could be judged"),
        (
            replace(ended("stopped", 5), limit="20 s were over"),
            2,
            "20 s were over; 2 of 5 steps could be judged, and 10 are needed",
        ),
        (
            ended("interrupted", 72),
            60,
            "interrupted from outside after 72 steps; in the 60 that could be judged nothing was",
        ),
        (ended("interrupted", 2), 0, "interrupted from outside after 2 steps; none of them could"),
        (ended("interrupted"), 0, "interrupted from outside before any optimizer took a step"),
        (ended("killed", 72), 60, "rank 0 killed"),
    ],
)
def test_why_it_tells_nothing(run: TrainingRun, judged: int, why: str) -> None:
    assert why in run.unjudged(judged, 10)


def test_enough_steps_and_a_good_end_are_judged() -> None:
    assert ended("finished", 20, children=30.0).unjudged(10, 10) == ""
    stopped = replace(ended("stopped", 20), limit="20 s were over")
    assert stopped.unjudged(10, 10) == ""


def examined() -> tuple[Report, Evidence]:
    evidence = Evidence([ended(children=38.2)])
    return engine.examine(evidence, "run"), evidence


def test_the_first_line_says_it_and_nothing_says_it_again() -> None:
    report, evidence = examined()
    assert report.verdict is Verdict.INCOMPLETE
    assert [row.check for row in report.crashed] == [JUDGING]
    assert wording.verdict(report).startswith("incomplete: the script came to its end, and no op")
    text = StringIO()
    terminal.render(report, evidence, Console(file=text, width=60))
    shown = text.getvalue().splitlines()
    assert max(map(len, shown)) <= 60
    assert "failed" not in shown
    assert "## Failed" not in markdown.render(report, evidence)
    assert 'id="failed"' not in html.render(report, evidence)


def test_nobody_is_sent_for_evidence_with_the_command_that_he_gave() -> None:
    report, evidence = examined()
    (group,) = wording.left_out(report, evidence)
    assert str(group).endswith("checks: no step could be judged")


def test_ranks_that_were_not_recorded_are_missed() -> None:
    few = replace(training_sample.run(1), world=2)
    assert few.unjudged(60, 10) == few.unrecorded
    assert "of 2 ranks only 1 was recorded" in few.unrecorded
    assert dict(training.rows(Evidence([few])))["recorded"] == few.unrecorded


@pytest.mark.parametrize("world", [0, 1, 2])
def test_all_ranks_were_recorded(world: int) -> None:
    run = replace(training_sample.run(2), world=world)
    assert run.unrecorded == run.unjudged(60, 10) == ""
    assert "recorded" not in dict(training.rows(Evidence([run])))
