from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.live import Activity, LiveLook
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceFixed
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import HotLine, Lines, RankLines
from ddoctor.evidence.training import RankFlags, RankUse, Repeat
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import look, moving
from tests.training_run import user
from tests.training_steps import USUAL, steps

CAUSE = "forward-repeated"
LINE = Frame(file="/home/me/train.py", line=79, function="compute_loss", text="h = encoder(ids)")


def use(*seconds: float, random: bool = False) -> RankUse:
    flags = (
        RankFlags(
            rank=rank,
            repeat=Repeat(line=LINE, random=random, seconds=one) if one else None,
        )
        for rank, one in enumerate(seconds)
    )
    return RankUse(hosts=(), flags=tuple(flags))


def test_the_second_time_is_for_nothing(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.014, 0.013))
    assert finding.severity is Severity.WARNING
    assert "at train.py:79 in compute_loss (`h = encoder(ids)`), 13 ms forwards" in finding.because


def test_dropout_may_be_wanted(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.014, 0.013, random=True))
    assert finding.severity is Severity.NOTE
    assert "if dropout shall make them differ" in finding.because


def test_a_parametrization_at_each_use(findings: Findings) -> None:
    flags = tuple(
        RankFlags(rank=rank, repeat=Repeat(line=LINE, random=False, seconds=0.014, weights=47))
        for rank in range(2)
    )
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), RankUse(hosts=(), flags=flags))
    assert finding.severity is Severity.WARNING
    assert "computes the same weight 48 times in each step at train.py:79" in finding.because
    assert "parametrize.cached()" in finding.fixes[0].paste


@pytest.mark.parametrize("seconds", [(), (0.0, 0.0), (0.014, 0.0), (0.002, 0.002)])
def test_quiet(findings: Findings, seconds: tuple[float, ...]) -> None:
    assert findings(CAUSE, steps(USUAL, USUAL), use(*seconds)) == ()


LOSS = user(50, "loss = model(batch)", "main")
CELL = user(30, "h = torch.tanh(x + self.rec(h))", "Cell.forward")


def computing(samples: int, makes: str, loop: Block) -> LiveLook:
    """Two ranks, of whose samples so many are in the forward pass at that line of the cell."""
    spent = Activity(
        name="forward", samples=samples, visits=30, calls=(LOSS, CELL), entered=1, within=(loop,)
    )
    spent = replace(spent, makes=makes)
    others = Activity(name="backward", samples=100 - samples, visits=30, calls=(LOSS,), entered=1)
    ranks = (moving(rank) for rank in range(2))
    return look(*(replace(one, samples=100, activities=(spent, others)) for one in ranks))


def loop(function: str) -> Block:
    return Block(file=CELL.file, line=29, end=31, function=function, text="for x in xs:", loop=True)


def test_a_parametrization_in_a_live_run(findings: Findings) -> None:
    (finding,) = findings(CAUSE, computing(25, "parametrization", loop("Cell.forward")))
    assert finding.severity is Severity.WARNING
    assert "for 25% of the time in the forward pass, in a loop, at train.py:30" in finding.because
    assert "parametrize.cached()" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("samples", "makes", "function"),
    [
        (5, "parametrization", "Cell.forward"),
        (25, "", "Cell.forward"),
        # Once in each pass: the loop is the training's.
        (25, "parametrization", "main"),
    ],
)
def test_quiet_in_a_live_run(findings: Findings, samples: int, makes: str, function: str) -> None:
    assert findings(CAUSE, computing(samples, makes, loop(function))) == ()


EIGH = SourceLine(file="train.py", line=30, text="h = eigh(self.graph)", function="Cell.forward")
FIXED = Script(files=("train.py",), fixed_work=(SourceFixed(at=EIGH, buffer="self.graph"),))


def sampled(*of_100: int, phase: str = "forward", line: int = 30) -> Lines:
    """So many of 100 samples of each rank are at that line."""
    hot = HotLine(
        phase=phase, file=CELL.file, line=line, function="Cell.forward", text="", samples=1
    )
    return Lines(
        ranks=tuple(
            RankLines(rank=rank, samples=100, lines=(replace(hot, samples=one),))
            for rank, one in enumerate(of_100)
        )
    )


def test_what_never_changes_is_computed_in_each_step(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), FIXED, sampled(42, 45))
    assert finding.severity is Severity.WARNING
    assert "computes the same in each step, for 42% of the time" in finding.because
    assert "the buffer graph never changes" in finding.because
    assert "register_buffer" in finding.fixes[0].paste


def test_the_source_alone_does_not_know_what_it_costs(findings: Findings) -> None:
    (finding,) = findings(CAUSE, FIXED)
    assert finding.severity is Severity.NOTE
    assert finding.cost is None


def test_a_buffer_in_a_live_run(findings: Findings) -> None:
    (finding,) = findings(CAUSE, computing(35, "", loop("Cell.forward")), FIXED)
    assert finding.severity is Severity.WARNING
    assert "for 35% of the time" in finding.because


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(sampled(42, 3), id="one rank alone"),
        pytest.param(sampled(42, 45, line=31), id="another line"),
        pytest.param(sampled(42, 45, phase="loader"), id="not in a forward pass"),
    ],
)
def test_a_buffer_that_costs_little(findings: Findings, lines: Lines) -> None:
    assert findings(CAUSE, steps(USUAL, USUAL), FIXED, lines) == ()


def test_a_buffer_that_costs_little_in_a_live_run(findings: Findings) -> None:
    assert findings(CAUSE, computing(5, "", loop("Cell.forward")), FIXED) == ()
