from __future__ import annotations

import pytest

from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.logged import event, logged
from tests.training_run import ending, run
from tests.training_steps import USUAL, steps

CAUSE = "not-launched-distributed"


def test_no_launcher(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("rank-expected", variable="RANK")))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert "no launcher has set" in finding.because
    assert "torchrun" in finding.fixes[0].paste


def test_quiet_about_other_lines(findings: Findings) -> None:
    assert findings(CAUSE, logged()) == ()
    assert (
        findings(
            CAUSE,
            logged(
                event("progress", done="5", total="5"),
                event("clients-joined", joined="8", wanted="8"),
            ),
        )
        == ()
    )


def test_a_group_that_is_used_too_early_looks_alike(findings: Findings) -> None:
    (finding,) = findings(CAUSE, logged(event("rank-expected")))
    assert finding.confidence is Confidence.POSSIBLE


def of(ranks: int, world: int) -> TrainingRun:
    return run(*(ending(rank, "stopped") for rank in range(ranks)), world=world)


def test_processes_that_never_joined(findings: Findings) -> None:
    section = steps(USUAL, USUAL)
    (finding,) = findings(CAUSE, of(2, 1), section)
    assert finding.severity is Severity.WARNING
    assert finding.because.startswith("2 processes train, and none has joined a process group")


@pytest.mark.parametrize(("ranks", "world"), [(2, 2), (1, 1), (2, 0)])
def test_quiet_where_they_joined_or_it_is_not_known(
    findings: Findings, ranks: int, world: int
) -> None:
    assert findings(CAUSE, of(ranks, world), steps(*[USUAL] * ranks)) == ()


def test_quiet_after_a_few_steps(findings: Findings) -> None:
    assert findings(CAUSE, of(2, 1), steps(USUAL, USUAL, count=9)) == ()
