from __future__ import annotations

import pytest

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import HotLine, Lines, Phase, RankLines, RankSteps, Steps
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "per-rank-metrics-or-logging"
PRINT = 'print(f"step {step} {loss:.3f}")'


def line(text: str, *, inner: str = "", samples: int = 30, phase: str = "rest") -> HotLine:
    return HotLine(
        phase=phase,
        file="train.py",
        line=40,
        function="main",
        text=text,
        samples=samples,
        inner=inner,
    )


def lines(*ranks: HotLine | None) -> Lines:
    """Of 240 looks at each rank."""
    return Lines(
        ranks=tuple(
            RankLines(rank=number, samples=240, lines=() if one is None else (one,))
            for number, one in enumerate(ranks)
        )
    )


def steps(ranks: int = 2, device: str = "cpu") -> Steps:
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(
                place=RankPlace(rank=number, host="a", device=device),
                phases=(Phase(name="rest", seconds=(0.1,) * 60),),
            )
            for number in range(ranks)
        ),
    )


def test_all_ranks_print(findings: Findings) -> None:
    one = line(PRINT)
    (finding,) = findings(CAUSE, lines(one, one), steps())
    assert finding.severity is Severity.NOTE
    assert finding.confidence is Confidence.LIKELY
    assert "each of 2 ranks logs at train.py:40" in finding.because
    assert "for 12% of the step" in finding.because
    assert finding.where.ranks == (0, 1)
    assert f"\n    {PRINT}" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("logger.info(message)", "logging/__init__.py:emit"),
        ("report(loss)", "logging/__init__.py:flush"),
        ("writer.add_scalar('loss', loss, step)", "tensorboard/writer.py:add_event"),
        ("for batch in bar:", "tqdm/std.py:refresh"),
    ],
)
def test_how_it_looks_on_gpus(findings: Findings, text: str, inner: str) -> None:
    one = line(text, inner=inner)
    assert len(findings(CAUSE, lines(one, one), steps(device="cuda:0"))) == 1


def test_metrics_of_each_rank(findings: Findings) -> None:
    one = line("f1 = f1_score(labels, guesses)", inner="metrics/_classification.py:f1_score")
    (finding,) = findings(CAUSE, lines(one, one), steps())
    assert finding.confidence is Confidence.POSSIBLE
    assert "the script tells" in finding.because
    assert "all_reduce(counts)" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((line(PRINT), None), id="rank 0 only"),
        pytest.param((line(PRINT), line(PRINT, samples=1)), id="hardly on the other"),
        pytest.param((line(PRINT, samples=4), line(PRINT, samples=4)), id="met by chance"),
        pytest.param((line("x = torch.log(x)"),) * 2, id="a logarithm"),
        pytest.param((line("loss = step(model, batch)"),) * 2, id="anything else"),
        pytest.param((line(PRINT, phase="evaluation"),) * 2, id="after an epoch"),
    ],
)
def test_quiet(findings: Findings, ranks: tuple[HotLine | None, ...]) -> None:
    assert findings(CAUSE, lines(*ranks), steps()) == ()


@pytest.mark.parametrize(
    ("text", "inner"),
    [(PRINT, ""), (PRINT, "torch/_tensor.py:__format__"), ("print(loss.item())", "")],
)
def test_quiet_where_a_line_waits_for_the_gpu(findings: Findings, text: str, inner: str) -> None:
    one = line(text, inner=inner)
    assert findings(CAUSE, lines(one, one), steps(device="cuda:0")) == ()


def test_quiet_with_one_rank(findings: Findings) -> None:
    assert findings(CAUSE, lines(line(PRINT)), steps(ranks=1)) == ()
