from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_run import LATE, RESET, echoing, ending, raised, run

CAUSE = "first-failure-masked"


def test_names_the_error_that_was_the_first(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(echoing(0), raised(1, "ValueError", "bad sample 17")))
    assert finding.where.ranks == (1,)
    assert (
        "rank 1 (pid 101 on a) failed before, with 'ValueError: bad sample 17'" in finding.because
    )
    assert "bad sample 17" in finding.fixes[0].paste
    assert finding.severity is Severity.NOTE


def test_it_is_a_consequence_of_the_death() -> None:
    section = run(echoing(0), raised(1, "ValueError", "bad sample 17"), echoing(2))
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == "dead-rank"
    assert finding.consequences == (CAUSE,)


def test_it_is_a_consequence_of_the_loss_of_a_host() -> None:
    section = run(echoing(0), ending(1, "vanished", host="b", steps=39), host="a")
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == "dead-rank"
    assert finding.consequences == (CAUSE,)


def test_all_that_was_seen_are_echoes(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(echoing(0), echoing(1), ending(2, "hung", doing="loader")))
    assert finding.severity is Severity.ERROR
    assert "ranks 0-1 failed" in finding.because
    assert "rank 2 was in the phase loader" in finding.because
    assert "@record" in finding.fixes[0].paste


def test_a_rank_that_had_finished_is_another_cause(findings: Findings) -> None:
    section = run(echoing(0), ending(1, "finished", steps=39))
    assert findings(CAUSE, section) == ()
    (finding,) = findings("uneven-inputs-per-rank", section)
    assert "rank 1 had finished the script after 39 steps" in finding.because
    assert "Join" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "message",
    [
        RESET,
        LATE,
        "NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or network error",
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
        "[c10d] Broken pipe. Did the remote server shutdown or crash?",
    ],
)
def test_what_counts_as_an_echo(findings: Findings, message: str) -> None:
    section = run(echoing(0, message), raised(1, "KeyError", "'x'"))
    assert len(findings(CAUSE, section)) == 1


def test_a_watchdog_that_aborts_is_an_echo(findings: Findings) -> None:
    words = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, ...)"
    aborted = ending(0, "killed", exit_code=-6, printed=words)
    assert len(findings(CAUSE, run(aborted, raised(1, "KeyError", "'x'")))) == 1


def test_quiet_where_the_only_error_is_its_own(findings: Findings) -> None:
    assert findings(CAUSE, run(raised(0, "ValueError", "x"), ending(1, "hung"))) == ()
    assert findings(CAUSE, run(raised(0, "ValueError", "x"), raised(1, "ValueError", "x"))) == ()


def test_quiet_on_a_lost_connection_of_another_kind(findings: Findings) -> None:
    download = raised(0, "ConnectionResetError", "[Errno 104] Connection reset by peer")
    assert findings(CAUSE, run(download, ending(1, "hung"))) == ()


@pytest.mark.parametrize("outcome", ["stopped", "finished", "interrupted", "hung"])
def test_quiet_where_nothing_failed(findings: Findings, outcome: str) -> None:
    assert findings(CAUSE, run(ending(0, outcome, printed=RESET), ending(1, outcome))) == ()


@pytest.mark.parametrize("printed", ["BrokenPipeError: [Errno 32] Broken pipe", RESET])
def test_what_the_workers_of_a_killed_rank_print_is_no_echo(printed: str) -> None:
    killed = ending(1, "killed", exit_code=-9, printed=printed)
    (finding,) = engine.examine(Evidence([run(echoing(0), killed)]), "run").findings
    assert finding.cause == "dead-rank"
    assert finding.where.ranks == (1,)
    assert "SIGKILL" in finding.because


def test_quiet_on_who_was_killed(findings: Findings) -> None:
    assert findings(CAUSE, run(ending(0, "killed", exit_code=-9), ending(1, "hung"))) == ()
