from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity, LiveLook, LiveRank
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import HotLine, Lines, Phase, RankLines, RankSteps, Steps
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import LINE, look, moving, standing
from tests.training_run import user

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
    assert "check in the script" in finding.because
    assert "all_reduce(counts)" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((line(PRINT), None), id="rank 0 only"),
        pytest.param((line(PRINT), line(PRINT, samples=1)), id="hardly on the other"),
        pytest.param((line(PRINT, samples=4), line(PRINT, samples=4)), id="met by chance"),
        pytest.param((line("x = torch.log(x)"),) * 2, id="a logarithm"),
        pytest.param((line('self.log("a", x, sync_dist=True)'),) * 2, id="exchanged"),
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


LOGS = user(44, 'logger.info("step %d", step)')
METRIC = user(45, "f1 = f1_score(labels, guesses)")


def telling(
    number: int, line: Frame = LOGS, *, name: str = "rest", on_gpu: bool = False, samples: int = 20
) -> LiveRank:
    """A rank that is met at such a line in so many of a hundred samples."""
    rank = moving(number, {"forward": 50, "backward-or-wait": 50 - samples})
    met = Activity(name=name, samples=samples, visits=9, calls=(line,))
    return msgspec.structs.replace(
        rank, samples=100, activities=(*rank.activities, met), on_gpu=on_gpu
    )


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (LOGS, {}),
        (user(44, 'print(f"step {step}")'), {}),
        (user(44, "report(loss)"), {"name": "logging"}),
        (LOGS, {"name": "logging", "on_gpu": True}),
    ],
)
def test_all_live_ranks_log(findings: Findings, line: Frame, fields: dict[str, Any]) -> None:
    (finding,) = findings(CAUSE, look(*(telling(one, line, **fields) for one in range(3))))
    assert finding.severity is Severity.NOTE
    assert "each of 3 ranks logs at train.py:44 in main" in finding.because
    assert "for 20% of the step" in finding.because
    assert line.text in finding.fixes[0].paste


def test_all_live_ranks_compute_metrics(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(telling(0, METRIC), telling(1, METRIC)))
    assert finding.confidence is Confidence.POSSIBLE


def test_the_cause_of_a_slow_live_run_comes_first() -> None:
    starved = Activity(name="loader-wait", samples=100, visits=9, calls=(LINE,))
    ranks = (
        msgspec.structs.replace(one, samples=200, activities=(*one.activities, starved))
        for one in (telling(0), telling(1))
    )
    found = engine.examine(Evidence([look(*ranks)]), "attach").findings
    first, *others = (one.cause for one in found)
    assert first == "dataloader-bottleneck"
    assert CAUSE in others


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # Rank 0 only; alone; seldom on one of them; not the line of a log.
        look(telling(0), moving(1)),
        look(telling(0)),
        look(telling(0), telling(1, samples=5)),
        look(*(telling(one, user(44, "x = torch.log(x)")) for one in (0, 1))),
        # All ranks take part.
        look(*(telling(one, user(44, "self.log_dict(x, sync_dist=True)")) for one in (0, 1))),
        # It may wait for the GPU there; it belongs to an evaluation; they stand.
        look(*(telling(one, on_gpu=True) for one in (0, 1))),
        look(*(telling(one, METRIC, name="evaluation") for one in (0, 1))),
        look(*(standing(one, "logging", LOGS) for one in (0, 1))),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
