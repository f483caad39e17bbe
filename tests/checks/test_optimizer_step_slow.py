from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import Lines
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.analysis.test_live_loop import STEP, rank
from tests.conftest import Findings
from tests.live_look import look
from tests.training_run import user
from tests.training_steps import Work, lines, steps

CAUSE = "optimizer-step-slow"
SLOW: Work = {"forward": 0.01, "backward": 0.02, "optimizer": 0.06}
QUICK: Work = {"forward": 0.04, "backward": 0.08, "optimizer": 0.01}
ROWS = "average[row].mul_(0.9).add_(gradient[row], alpha=0.1)"
PRODUCTS = "update = a * update + b @ update"
STEPS = "optimizer.step()"


def model(mebibytes: float = 3.0) -> Wrapping:
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=one,
                kind="ddp",
                name="Net",
                parameters=1,
                parameter_bytes=round(mebibytes * 2**20),
                trainable_bytes=round(mebibytes * 2**20),
            )
            for one in range(2)
        )
    )


def met(text: str, looks: int = 40, *, inner: str = "") -> Lines:
    """Both ranks at this line in the optimizer, and as often as this at the call of the step."""
    row = {("optimizer", 8, text): looks, ("optimizer", 31, STEPS): 2}
    found = lines(row, row)
    ranks = tuple(
        replace(
            one,
            lines=tuple(replace(line, inner=inner if line.line == 8 else "") for line in one.lines),
        )
        for one in found.ranks
    )
    return replace(found, ranks=ranks)


def test_a_loop_over_rows(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(SLOW, SLOW), met(ROWS), model())
    assert finding.severity is Severity.WARNING
    assert "train.py:8 in main (`average[row]" in finding.because
    assert "3 MiB of parameters" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.06 / 0.09 * 40 / 42, abs=0.05)


def test_decompositions_in_each_step(findings: Findings) -> None:
    roots = met("values, vectors = torch.linalg.eigh(average)")
    (finding,) = findings(CAUSE, steps(SLOW, SLOW), roots, model())
    assert finding.severity is Severity.WARNING
    assert "train.py:8 in main (`values, vectors = torch.linalg.eigh(average)`)" in finding.because
    assert "% 20 == 0" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("work", "where", "size"),
    [
        # Little time; torch's own optimizer; large parameters; matrix products.
        (QUICK, met(ROWS), model()),
        (SLOW, met(STEPS), model()),
        (SLOW, met(ROWS, inner="optim/adamw.py:step"), model()),
        (SLOW, met(ROWS), model(mebibytes=40)),
        (SLOW, met(PRODUCTS), model()),
        (QUICK, met("root = torch.linalg.inv(average)"), model()),
        (SLOW, met(ROWS, looks=1), model()),
    ],
)
def test_quiet(findings: Findings, work: Work, where: Lines, size: Wrapping) -> None:
    assert findings(CAUSE, steps(work, work), where, size) == ()


def test_quiet_where_one_rank_alone_does_it(findings: Findings) -> None:
    row = {("optimizer", 31, STEPS): 2}
    where = lines({**row, ("optimizer", 8, ROWS): 40}, row)
    assert findings(CAUSE, steps(SLOW, SLOW), where, model()) == ()


def of_optimizer(samples: int, *inner: Frame) -> tuple[tuple[str, int, tuple[Frame, ...]], ...]:
    *passes, (name, _, calls) = STEP
    return (*passes, (name, samples, (*calls, *inner)))


OWN = user(8, ROWS, "Slow.step")


@pytest.mark.parametrize("ranks", [1, 2])
def test_in_a_live_run(findings: Findings, ranks: int) -> None:
    live = look(*(rank(one, step=of_optimizer(120, OWN)) for one in range(ranks)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.WARNING
    assert f"at train.py:8 in Slow.step (`{ROWS}`)" in finding.because


def test_decompositions_in_a_live_run(findings: Findings) -> None:
    roots = of_optimizer(60, user(8, "values, vectors = torch.linalg.eigh(average)", "root"))
    (finding,) = findings(CAUSE, look(*(rank(one, step=roots) for one in range(2))))
    assert finding.severity is Severity.WARNING
    assert "all ranks spend" in finding.because
    assert "% 20 == 0" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "step",
    [
        of_optimizer(120),
        of_optimizer(10, user(8, "root = torch.linalg.inv(average)", "root")),
        of_optimizer(20, OWN),
        of_optimizer(120, user(8, PRODUCTS, "Muon.step")),
        of_optimizer(120, user(8, "self.inner.step()", "Lookahead.step")),
    ],
)
def test_quiet_in_a_live_run(
    findings: Findings, step: tuple[tuple[str, int, tuple[Frame, ...]], ...]
) -> None:
    assert findings(CAUSE, look(*(rank(one, step=step) for one in range(2)))) == ()
