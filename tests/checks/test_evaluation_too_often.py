from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import HotLine, Lines, RankLines, Steps
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import COUNT, USUAL, Work, every, steps

CAUSE = "evaluation-too-often"
FILE = "/home/me/train.py"
LOOP, WITHIN = (
    Frame(file=FILE, line=line, function=name, text=text)
    for line, name, text in ((50, "main", "evaluate(model)"), (12, "evaluate", "model(x)"))
)


def evaluates(seconds: float, number: int) -> Work:
    return {**USUAL, "evaluation": every(number, seconds)}


def of_ranks(one: Work, other: Work) -> Steps:
    return steps(one, other, together=False)


def sampled(*ways: tuple[Frame, ...]) -> Lines:
    rows = (
        HotLine(
            phase="evaluation",
            file=FILE,
            line=way[-1].line,
            function=way[-1].function,
            text=way[-1].text,
            samples=5,
            calls=way,
        )
        for way in ways
    )
    return Lines(ranks=(RankLines(rank=0, samples=40, lines=tuple(rows)),))


def test_every_three_steps(findings: Findings) -> None:
    seen = of_ranks(evaluates(0.3, 3), evaluates(0.3, 3))
    loss = replace(WITHIN, line=14)
    (finding,) = findings(CAUSE, seen, sampled((LOOP, WITHIN), (LOOP, loss)))
    assert finding.severity is Severity.NOTE
    assert "evaluate about every 3 steps, for 300 ms" in finding.because
    assert finding.because.endswith("at train.py:50 in main (`evaluate(model)`)")


def test_text_that_is_generated_needs_the_cache(findings: Findings) -> None:
    seen = of_ranks(evaluates(0.3, 3), evaluates(0.3, 3))
    generates = replace(WITHIN, text="model.generate(**batch)")
    (finding,) = findings(CAUSE, seen, sampled((LOOP, generates)))
    assert "use_cache=True" in finding.fixes[0].paste


def test_in_each_step(findings: Findings) -> None:
    seen = of_ranks(evaluates(0.1, 1), evaluates(0.1, 1))
    (finding,) = findings(CAUSE, seen, sampled((LOOP, WITHIN)))
    assert "evaluate in each step" in finding.because


def test_quiet_about_targets_and_actions_in_each_step(findings: Findings) -> None:
    seen = of_ranks(evaluates(0.1, 1), evaluates(0.1, 1))
    acts = Frame(file=FILE, line=20, function="collect", text="action = policy(state).argmax()")
    assert findings(CAUSE, seen, sampled((replace(LOOP, text="collect(policy)"), acts))) == ()
    assert findings(CAUSE, seen) == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (USUAL, USUAL),
        # Once in the steps that were seen.
        (evaluates(5.0, COUNT), evaluates(5.0, COUNT)),
        # Short ones.
        (evaluates(0.03, 3), evaluates(0.03, 3)),
        # Rank 0 alone: it is told as its extra work.
        (evaluates(0.3, 3), USUAL),
    ],
)
def test_quiet(findings: Findings, one: Work, other: Work) -> None:
    assert findings(CAUSE, of_ranks(one, other)) == ()
