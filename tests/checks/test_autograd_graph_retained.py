from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_run import user

CAUSE = "autograd-graph-retained"
STEPS = tuple(range(0, 61, 3))


def rank(number: int = 0, *, per_step: float = 0.5, device: bool = True, **graph: Any) -> Growth:
    """A rank whose memory grows by ``per_step`` MiB per step."""
    grows = tuple(900.0 + per_step * step for step in STEPS)
    same = (900.0,) * len(STEPS)
    return Growth(
        rank=number,
        host="node-0",
        times=tuple(0.2 * step for step in STEPS),
        steps=STEPS,
        resident=same if device else grows,
        device=grows if device else (),
        **graph,
    )


def run(*ranks: Growth) -> MemoryOverTime:
    return MemoryOverTime(ranks=ranks)


def test_a_loss_of_each_step_is_kept(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(rank(graph_tensors=61, graph_tensors_before=1)))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == (0,)
    assert finding.because == (
        "rank 0 kept 60 tensors with their graph in 60 steps, and memory grew by 0.5 MiB per step"
    )
    assert "loss.detach()" in finding.fixes[0].paste


def test_the_statement_is_named(findings: Findings) -> None:
    keeps = (user(30, "history.append(loss)", "train"),)
    one = rank(graph_tensors=61, graph_tensors_before=1, keeps=keeps)
    (finding,) = findings(CAUSE, run(one))
    assert finding.because.endswith("stored at train.py:30 in train (`history.append(loss)`)")


def test_a_gpu_is_looked_at_in_the_middle_of_steps(findings: Findings) -> None:
    one = rank(graph_tensors=61, graph_tensors_before=1, device=False, per_step=0.1)
    # Activations come and go by 2 GiB, and 75 MiB stay of each step.
    device = tuple(900.0 + 75 * step + 2048 * (index % 3) for index, step in enumerate(STEPS))
    (finding,) = findings(CAUSE, run(replace(one, device=device)))
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(75, rel=0.2)


@pytest.mark.parametrize("device", [True, False], ids=["on a GPU", "on a CPU"])
def test_losses_are_added_up(findings: Findings, device: bool) -> None:
    one = rank(graph_tensors=2, graph_depth=84, graph_depth_before=24, device=device)
    (finding,) = findings(CAUSE, run(one))
    assert "a tensor with 60 additions in its graph" in finding.because
    assert "total += loss.detach()" in finding.fixes[0].paste


def test_every_second_step(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(rank(graph_tensors=31)))
    assert finding.confidence is Confidence.LIKELY


def test_all_ranks_are_one_finding(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(rank(graph_tensors=60), rank(1, graph_tensors=60)))
    assert finding.where.ranks == (0, 1)
    assert "ranks 0-1" in finding.because


def test_memory_does_not_show_it_yet(findings: Findings) -> None:
    quiet = rank(per_step=0, graph_tensors=2, graph_depth=69, graph_depth_before=9)
    (finding,) = findings(CAUSE, run(quiet))
    assert finding.confidence is Confidence.CERTAIN
    assert "memory shows no growth yet" in finding.because


@pytest.mark.parametrize(
    "sound",
    [
        pytest.param(rank(graph_tensors=1, graph_depth=1), id="the last loss"),
        pytest.param(rank(), id="not counted"),
        pytest.param(rank(graph_tensors=8, graph_depth=8), id="a window of the last ones"),
        pytest.param(rank(per_step=0, graph_tensors=96), id="what weight_norm keeps"),
        pytest.param(
            rank(graph_tensors=97, graph_tensors_before=97), id="weight_norm, and another leak"
        ),
        pytest.param(rank(per_step=0, graph_tensors=1, graph_depth=200), id="a residual network"),
        pytest.param(
            rank(graph_tensors=1, graph_depth=200, graph_depth_before=200),
            id="a residual network, and another leak",
        ),
    ],
)
def test_quiet(findings: Findings, sound: Growth) -> None:
    assert findings(CAUSE, run(sound)) == ()


def test_quiet_after_a_few_steps(findings: Findings) -> None:
    short = Growth(
        rank=0,
        host="node-0",
        times=tuple(0.1 * look for look in range(15)),
        steps=tuple(look // 2 for look in range(15)),
        resident=tuple(900.0 + look for look in range(15)),
        graph_tensors=8,
        graph_depth=8,
    )
    assert findings(CAUSE, run(short)) == ()
