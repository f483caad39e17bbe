from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import in_collective, in_reduction, look, moving, standing
from tests.training_loaders import loader_with
from tests.training_run import echoing, ending, raised, run, user

CAUSE = "dead-rank"
RESET = "RuntimeError: Read error [127.0.0.1]:51630: Connection reset by peer."


def state(rank: int, code: int | None = None, words: str = "", age: float = 1.0) -> RankState:
    last = "all-reduce of 1024 bytes, round 3"
    return RankState(
        rank=rank, host="a", last=last, age=age, pid=100 + rank, exit_code=code, words=words
    )


def runs(*states: RankState, outcome: str = "crashed") -> ProbeRuns:
    run = ProbeRun(probe="allreduce", outcome=outcome, ranks=states)  # type: ignore[arg-type]
    return ProbeRuns(host="a", runs=(run,), backend="gloo", world_size=len(states))


@pytest.mark.parametrize(
    ("code", "name", "command"),
    [
        (-9, "SIGKILL", "dmesg"),
        (-7, "SIGBUS", "df -h /dev/shm"),
        (-11, "SIGSEGV", "PYTHONFAULTHANDLER=1"),
        (-6, "SIGABRT", "PYTHONFAULTHANDLER=1"),
    ],
)
def test_a_killed_rank_is_named_and_not_its_victims(
    findings: Findings, code: int, name: str, command: str
) -> None:
    (finding,) = findings(CAUSE, runs(state(0, 1, RESET), state(1, code), state(2, 1, RESET)))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert name in finding.because
    assert "pid 101" in finding.because
    assert command in finding.fixes[0].paste


def test_ranks_that_vanished_are_named_when_all_others_are_victims(findings: Findings) -> None:
    gone = [replace(state(rank), host="b", status="silent") for rank in (2, 3)]
    (finding,) = findings(CAUSE, runs(state(0, 1, RESET), state(1, 1, RESET), *gone))
    assert (finding.where.hosts, finding.where.ranks) == (("b",), (2, 3))
    assert "rank 2 (pid 102 on b) and 1 more" in finding.because


def test_who_vanished_is_not_told_beside_who_was_killed(findings: Findings) -> None:
    gone = replace(state(2), status="silent")
    (finding,) = findings(CAUSE, runs(state(0, 1, RESET), state(1, -9), gone))
    assert finding.where.ranks == (1,)


def test_quiet_when_only_victims_are_known(findings: Findings) -> None:
    assert findings(CAUSE, runs(state(0, 1, RESET), state(1, 1, RESET), state(2))) == ()


def test_an_error_of_one_rank_alone_is_quoted(findings: Findings) -> None:
    words = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    (finding,) = findings(CAUSE, runs(state(0), state(1, 1, words), state(2)))
    assert finding.where.ranks == (1,)
    assert words in finding.because


def test_the_first_of_several_errors_is_the_one(findings: Findings) -> None:
    late, early = state(0, 1, "KeyError: 'b'", age=0.1), state(1, 1, "KeyError: 'a'", age=2.0)
    (finding,) = findings(CAUSE, runs(late, early))
    assert finding.where.ranks == (1,)


def test_an_exit_without_a_word(findings: Findings) -> None:
    (finding,) = findings(CAUSE, runs(state(0, 1, RESET), state(1, 3)))
    assert finding.where.ranks == (1,)
    assert "exit code 3" in finding.because


def test_quiet_when_all_fail_alike(findings: Findings) -> None:
    words = "RuntimeError: Unable to find address for: eth7"
    assert findings(CAUSE, runs(state(0, 1, words), state(1, 1, words))) == ()


def test_quiet_when_there_are_victims_only(findings: Findings) -> None:
    assert findings(CAUSE, runs(state(0, 1, RESET), state(1))) == ()


def test_quiet_when_torchrun_itself_failed(findings: Findings) -> None:
    assert findings(CAUSE, runs()) == ()


@pytest.mark.parametrize("outcome", ["completed", "skipped", "hung", "interrupted"])
def test_quiet_on_every_other_end(findings: Findings, outcome: str) -> None:
    assert findings(CAUSE, runs(state(0), state(1), outcome=outcome)) == ()


def test_the_first_rank_of_a_run_that_raised(findings: Findings) -> None:
    section = run(
        echoing(0, doing="DDP's gradient reduction"),
        raised(1, "ValueError", "bad sample 17", time=12.0),
        raised(2, "KeyError", "'late'", time=12.2),
        echoing(3, doing="DDP's gradient reduction"),
    )
    (finding,) = findings(CAUSE, section)
    assert (finding.severity, finding.where.ranks) == (Severity.ERROR, (1,))
    assert (
        "rank 1 (pid 101 on a) raised ValueError: bad sample 17 at train.py:71 in main "
        "(`step(batch)`) after 40 steps, 12.0 s after the start, the first of 2 that "
        "failed; ranks 0, 3 waited in DDP's gradient reduction at train.py:72 in main; rank 2 "
        "raised KeyError"
    ) in finding.because
    assert finding.fixes[0].paste == (
        '# rank 1\n  File "/home/u/train.py", line 71, in main\n    step(batch)\n'
        "ValueError: bad sample 17"
    )


@pytest.mark.parametrize(
    ("code", "name", "command"),
    [(-9, "SIGKILL", "dmesg"), (-11, "SIGSEGV", "PYTHONFAULTHANDLER=1 torchrun … train.py")],
)
def test_a_rank_of_a_run_that_was_killed(
    findings: Findings, code: int, name: str, command: str
) -> None:
    section = run(echoing(0), ending(1, "killed", exit_code=code))
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (1,)
    assert name in finding.because
    assert command in finding.fixes[0].paste


def test_a_rank_of_a_run_that_left_without_a_word(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(echoing(0), ending(1, exit_code=3, steps=1)))
    assert "ended with exit code 3 after 1 step," in finding.because
    assert "grep -nE '_exit\\(" in finding.fixes[0].paste


def test_quiet_on_an_error_that_all_ranks_have(findings: Findings) -> None:
    section = run(raised(0, "FileNotFoundError", "data"), raised(1, "FileNotFoundError", "data"))
    assert findings(CAUSE, section) == ()


def test_an_error_that_some_ranks_have_is_one(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(echoing(0), raised(1, "KeyError"), raised(2, "KeyError")))
    assert finding.where.ranks == (1, 2)
    assert "ranks 1-2 raised KeyError at train.py:71" in finding.because


def test_an_error_in_a_loader_worker_is_told_by_its_last_line(findings: Findings) -> None:
    message = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
        "last):\n  File \"/home/u/data.py\", line 9, in __getitem__\nKeyError: 'label'\n"
    )
    (finding,) = findings(CAUSE, run(raised(0, "KeyError", message), echoing(1)))
    assert "raised KeyError: 'label' (Caught KeyError in DataLoader worker" in finding.because
    # The stack holds the frames of the worker.
    assert "Original Traceback" not in finding.fixes[0].paste


def test_an_exception_that_the_script_caught_before_it_exited(findings: Findings) -> None:
    caught = raised(1, "KeyError", "'x'", source="exit")
    (finding,) = findings(CAUSE, run(echoing(0), caught))
    assert finding.confidence is Confidence.CERTAIN
    assert "raised KeyError: 'x' at train.py:71 in main (`step(batch)`)" in finding.because
    assert "it was caught, and the process ended with exit code 1" in finding.because


def test_a_traceback_on_stderr_may_be_that_of_another_process(findings: Findings) -> None:
    printed = raised(1, "KeyError", "'x'", source="stderr")
    (finding,) = findings(CAUSE, run(echoing(0), printed))
    assert finding.confidence is Confidence.LIKELY
    assert "exit code 1; the last traceback on stderr is KeyError: 'x' at" in finding.because


def test_an_exit_whose_line_is_known(findings: Findings) -> None:
    section = run(echoing(0), ending(1, exit_code=3, stack=(user(9, "os._exit(3)"),)))
    (finding,) = findings(CAUSE, section)
    assert "ended with exit code 3 at train.py:9 in main (`os._exit(3)`)" in finding.because
    assert "line 9, in main" in finding.fixes[0].paste


def test_what_a_rank_raised_while_it_handled_the_first(findings: Findings) -> None:
    section = run(raised(1, "ValueError", "bad", then=RESET), echoing(0))
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (1,)
    assert "raised ValueError: bad, then RuntimeError: Read error" in finding.because


def test_a_thread_that_died_before(findings: Findings) -> None:
    stuck = raised(1, "Empty", thread="OSError: no disk at train.py:8 in feed")
    (finding,) = findings(CAUSE, run(echoing(0), stuck))
    assert "; before, a thread of rank 1 raised OSError: no disk at train.py:8" in finding.because


def test_a_rank_that_raised_and_was_ended_later(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE, run(raised(1, "ValueError", "x", exit_code=-15), ending(0, "hung"))
    )
    assert "rank 1 (pid 101 on a) raised ValueError: x at train.py:71" in finding.because


def test_the_only_process_of_a_run(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(ending(0, "killed", exit_code=-11)))
    assert finding.title == "The only process of the run has died"


def test_who_the_launcher_ended_is_not_the_first(findings: Findings) -> None:
    section = run(
        ending(0, "killed", exit_code=-15, time=11.9), raised(1, "ValueError", "x", time=12.0)
    )
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (1,)


def test_a_rank_of_a_run_that_vanished(findings: Findings) -> None:
    gone = ending(1, "vanished", host="b", doing="all_reduce")
    (finding,) = findings(CAUSE, run(ending(0, "hung", doing="all_reduce"), gone))
    assert finding.because.startswith(
        "rank 1 (pid 101 on b) did not respond any more after 40 steps: killed with all its "
        "processes, or its host is down or disconnected; rank 0 waited in all_reduce"
    )
    assert finding.where.ranks == (1,)
    assert "ping -c 3 b" in finding.fixes[0].paste


def test_several_ranks_of_a_run_that_vanished(findings: Findings) -> None:
    gone = [ending(rank, "vanished", host="b") for rank in (2, 3)]
    (finding,) = findings(CAUSE, run(ending(0, "hung"), ending(1, "hung"), *gone))
    assert "rank 2 (pid 102 on b) and 1 more did not respond" in finding.because
    assert finding.where.ranks == (2, 3)


def test_a_rank_that_failed_comes_before_one_that_vanished(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(raised(0, "ValueError", "x"), ending(1, "vanished")))
    assert finding.where.ranks == (0,)


@pytest.mark.parametrize("outcome", ["stopped", "finished", "interrupted", "hung"])
def test_quiet_on_a_run_that_did_not_fail(findings: Findings, outcome: str) -> None:
    assert findings(CAUSE, run(ending(0, outcome), ending(1, outcome))) == ()


def test_quiet_on_a_run_whose_ranks_only_echo_one_another(findings: Findings) -> None:
    assert findings(CAUSE, run(echoing(0), echoing(1), ending(2, "finished"))) == ()


def test_a_rank_that_is_missing_from_a_live_run(findings: Findings) -> None:
    live = look(in_reduction(0), in_reduction(2), missing=(1,), supervised=False)
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert "rank 1" in finding.because
    assert "ranks 0, 2 wait in backward at train.py:40" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        # None is missing; torchrun would have ended the others; they go on; one stands by itself.
        look(in_reduction(0), in_reduction(1), supervised=False),
        look(in_reduction(0), in_reduction(2), missing=(1,)),
        look(moving(0), moving(2), missing=(1,), supervised=False),
        look(
            in_collective(0, "barrier", 50),
            standing(2, "rest", user(60)),
            missing=(1,),
            supervised=False,
        ),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


def test_a_rank_that_leaves_the_others_by_itself(findings: Findings) -> None:
    """With as many batches as they have, it is no shorter epoch."""
    left = replace(ending(1, "finished", steps=39), stack=(user(33, "raise SystemExit", "train"),))
    section = run(echoing(0), left)
    alike = Loading(loaders=tuple(loader_with(rank=rank, batches=100, taken=39) for rank in (0, 1)))
    (finding,) = findings(CAUSE, section, alike)
    assert finding.where.ranks == (1,)
    assert (
        "rank 1 had finished the script at train.py:33 in train after 39 steps" in finding.because
    )
    assert findings("uneven-inputs-per-rank", section, alike) == ()


def test_quiet_where_a_rank_may_have_fewer_batches(findings: Findings) -> None:
    section = run(echoing(0), ending(1, "finished", steps=39))
    uneven = Loading(
        loaders=tuple(loader_with(rank=rank, batches=100 - rank, taken=39) for rank in (0, 1))
    )
    assert findings(CAUSE, section, uneven) == ()
    everything_ended = run(ending(0, "finished"), ending(1, "finished"))
    assert findings(CAUSE, everything_ended, uneven) == ()
