from __future__ import annotations

import pytest

from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "rank-stuck-outside-collective"


def state(rank: int, status: str = "sleeping", steps: int = 50) -> RankState:
    last = f"all-reduce of 1024 bytes, round {steps}"
    return RankState(
        rank=rank, host="a", last=last, age=14.0, steps=steps, pid=100 + rank, status=status
    )


def runs(*states: RankState, outcome: str = "hung") -> ProbeRuns:
    run = ProbeRun(probe="allreduce", outcome=outcome, ranks=states)  # type: ignore[arg-type]
    return ProbeRuns(host="a", runs=(run,), backend="gloo", world_size=len(states))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("stopped", "stopped by a signal"),
        ("tracing-stop", "debugger"),
        ("disk-sleep", "asleep in the kernel"),
        ("silent", "not heard of any more"),
    ],
)
def test_names_the_rank_that_something_holds(findings: Findings, status: str, words: str) -> None:
    (finding,) = findings(CAUSE, runs(state(0), state(1, status), state(2)))
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == (1,)
    assert "pid 101" in finding.because
    assert "all-reduce of 1024 bytes" in finding.because
    assert words in finding.because


def test_names_the_rank_that_is_behind(findings: Findings) -> None:
    (finding,) = findings(CAUSE, runs(state(0, steps=52), state(1, steps=51), state(2, steps=52)))
    assert finding.where.ranks == (1,)
    assert finding.confidence is Confidence.LIKELY
    assert "51 steps and the others up to 52" in finding.because


def test_the_held_one_is_named_and_not_who_waits_behind(findings: Findings) -> None:
    (finding,) = findings(CAUSE, runs(state(0, steps=51), state(1, "stopped", steps=52)))
    assert finding.where.ranks == (1,)


def test_quiet_when_all_wait_at_the_same_place(findings: Findings) -> None:
    assert findings(CAUSE, runs(state(0), state(1))) == ()


def test_quiet_when_nothing_hung(findings: Findings) -> None:
    assert findings(CAUSE, runs(outcome="completed")) == ()
    assert findings(CAUSE, runs(outcome="skipped")) == ()


def test_quiet_on_a_crash_and_on_an_interruption(findings: Findings) -> None:
    for outcome in ("crashed", "interrupted"):
        assert findings(CAUSE, runs(state(0), state(1, steps=3), outcome=outcome)) == ()


def test_quiet_when_no_rank_had_started(findings: Findings) -> None:
    assert findings(CAUSE, runs()) == ()


def test_quiet_on_one_rank_alone(findings: Findings) -> None:
    assert findings(CAUSE, runs(state(0, "disk-sleep"))) == ()
