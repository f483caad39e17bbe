from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from ddoctor.evidence.run_history import RankHistory, RunHistory, Stretch
from ddoctor.evidence.steps import HotLine, Lines, RankLines, Steps
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_run import user
from tests.training_steps import COUNT, steps, with_more

CAUSE = "step-time-grows"


def straight(per_step: float, count: int = COUNT) -> list[float]:
    return [per_step * step for step in range(count)]


def run(phase: str, more: Sequence[float], other: Sequence[float] | float = 0.0) -> Steps:
    return steps(with_more(phase, more), with_more(phase, other or more), noise=0.02)


def line(number: int, samples: int, late: int) -> HotLine:
    return HotLine(
        phase="rest",
        file="/home/me/train.py",
        line=number,
        function="<module>",
        text=f"line {number}",
        samples=samples,
        late=late,
    )


LINES = Lines(
    ranks=(RankLines(rank=0, samples=90, lines=(line(3, 40, 20), line(7, 30, 24), line(9, 9, 2))),)
)


def test_the_line_that_is_met_more_often_at_the_end(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run("rest", straight(0.002)), LINES)
    assert finding.where.ranks == ()
    assert "in 30 steps, the training loop outside of the model grew from 0.79" in finding.because
    assert "ms of a step at train.py:7 (`line 7`): 2" in finding.because
    assert finding.cost is not None
    assert 0.2 < finding.cost.value < 0.5


def test_the_call_of_a_function_whose_lines_share_what_is_more(findings: Findings) -> None:
    called = user(40, "area = curve(rows)"), user(9, "return curve(self.rows)")
    inner = [
        replace(line(number, 8, 7), calls=(*called, line(number, 8, 7).frame))
        for number in (52, 53, 54, 55)
    ]
    alone = line(31, 20, 14)
    seen = Lines(ranks=(RankLines(rank=0, samples=90, lines=(alone, *inner)),))
    (finding,) = findings(CAUSE, run("rest", straight(0.002)), seen)
    assert "train.py:9 in main (`return curve(self.rows)`)" in finding.because


def test_a_line_within_the_model(findings: Findings) -> None:
    way = (user(31, "loss = model(batch)"),)
    inner = replace(line(12, 20, 16), phase="forward", function="Net.forward", calls=way)
    seen = Lines(ranks=(RankLines(rank=0, samples=90, lines=(inner,)),))
    (finding,) = findings(CAUSE, run("forward", straight(0.005)), seen)
    assert "train.py:12 in Net.forward" in finding.because


@pytest.mark.parametrize(
    ("phase", "part"),
    [
        ("forward", "the passes of the model"),
        ("backward", "the passes of the model"),
        ("optimizer", "the optimizer"),
    ],
)
def test_parts_of_the_step(findings: Findings, phase: str, part: str) -> None:
    (finding,) = findings(CAUSE, run(phase, straight(0.005)))
    assert f"{part} grew from" in finding.because


def test_what_grows_in_both_passes(findings: Findings) -> None:
    work = with_more("backward", straight(0.006), with_more("forward", straight(0.003)))
    (finding,) = findings(CAUSE, steps(work, work, noise=0.02))
    assert "the passes of the model grew from" in finding.because


def test_on_one_rank(findings: Findings) -> None:
    seen = steps(with_more("rest", straight(0.002)), with_more("rest", 0.0), noise=0.02)
    (finding,) = findings(CAUSE, seen)
    assert finding.where.ranks == (0,)


ALIKE = {
    "a constant cost": [0.05] * COUNT,
    "once slower": [0.0] * 15 + [0.05] * 15,
    "settles": [0.05 * (1 - math.exp(-step / 4)) for step in range(COUNT)],
    "falls": [*reversed(straight(0.002))],
    "little": straight(0.0001),
    "up and down": [0.03 * math.sin(step / 4) + 0.03 for step in range(COUNT)],
}


@pytest.mark.parametrize("more", ALIKE.values(), ids=ALIKE.keys())
def test_quiet(findings: Findings, more: Sequence[float]) -> None:
    assert findings(CAUSE, run("rest", more)) == ()


def test_quiet_while_workers_fall_behind(findings: Findings) -> None:
    assert findings(CAUSE, run("loader", straight(0.002))) == ()


def test_quiet_on_a_machine_that_slows_down(findings: Findings) -> None:
    slower = [1 + step / COUNT for step in range(COUNT)]
    work = {
        name: [seconds * one for one in slower]
        for name, seconds in {"forward": 0.03, "backward": 0.06, "rest": 0.02}.items()
    }
    assert findings(CAUSE, steps(work, work, noise=0.02)) == ()


def test_quiet_where_batches_become_longer(findings: Findings) -> None:
    longer = [1000 + 100 * step for step in range(COUNT)]
    work = with_more("forward", straight(0.003))
    assert findings(CAUSE, steps(work, work, noise=0.02, elements=[longer, longer])) == ()


def history(cost: Callable[[int], float], phase: str = "rest", count: int = 20) -> RunHistory:
    rows = []
    for number in range(count):
        whole = 0.1 + cost(number)
        rows.append(
            Stretch(
                first=100 * number,
                last=100 * number + 99,
                begin=10.0 * number,
                seconds=100 * whole,
                fastest=whole,
                median=whole,
                slowest=whole,
                phases={phase: cost(number) / whole, "backward": 0.1 / whole},
                resident=800.0,
            )
        )
    ranks = tuple(RankHistory(rank=rank, host="a", stretches=tuple(rows)) for rank in range(2))
    return RunHistory(ranks=ranks)


@pytest.mark.parametrize("phase", ["rest", "loader"])
def test_in_a_long_run(findings: Findings, phase: str) -> None:
    (finding,) = findings(CAUSE, history(lambda number: 0.005 * number, phase), LINES)
    assert "in 1801 steps" in finding.because
    assert ": 5 ms more in each 100 steps" in finding.because


@pytest.mark.parametrize(
    "cost",
    [
        lambda number: 0.05,
        lambda number: 0.05 * (number > 9),
        lambda number: 0.05 * (number in (5, 9, 14)),
        # Half of a step in the first stretch alone: it warms up.
        lambda number: 0.05 * (number == 0),
    ],
)
def test_a_long_run_that_does_not_grow(findings: Findings, cost: Callable[[int], float]) -> None:
    assert findings(CAUSE, history(cost)) == ()


def test_a_long_run_is_judged_by_its_history(findings: Findings) -> None:
    """Its recorded steps are not all of them."""
    assert findings(CAUSE, history(lambda number: 0.05), run("rest", straight(0.002))) == ()


def test_what_grows_little_in_the_first_steps_may_have_a_bound(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run("rest", straight(0.0007)))
    assert finding.severity is Severity.NOTE
    (finding,) = findings(CAUSE, history(lambda number: 0.0008 * number))
    assert finding.severity is Severity.WARNING
