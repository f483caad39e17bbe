from __future__ import annotations

import pytest

from ddoctor.evidence.log import Log
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.gpu_memory_error import error
from tests.logged import event, logged
from tests.training_run import echoing, ending, raised, run, user

CAUSE = "script-error"
USAGE = "train.py: error: the following arguments are required: --data"


def test_an_error_that_all_ranks_have(findings: Findings) -> None:
    section = run(
        raised(0, "FileNotFoundError", "no data/a", time=12.4), raised(1, "FileNotFoundError", "b")
    )
    (finding,) = findings(CAUSE, section)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.title == "All ranks raise FileNotFoundError: b"
    assert finding.where.ranks == ()
    assert finding.because == (
        "all 2 ranks raised FileNotFoundError: b at train.py:71 in main (`step(batch)`) after 40 "
        "steps, 12.0 s after the start; other ranks: FileNotFoundError: no data/a"
    )
    assert "line 71, in main" in finding.fixes[0].paste


def test_an_error_of_all_ranks_of_which_the_launcher_ended_one_after_it(findings: Findings) -> None:
    section = run(raised(0, "OSError"), raised(1, "OSError", time=14.0, exit_code=-15))
    (finding,) = findings(CAUSE, section)
    assert finding.title.startswith("All ranks raise OSError")


def test_quiet_where_the_launcher_ended_one_that_had_not_raised(findings: Findings) -> None:
    ended = ending(1, "killed", time=14.0, exit_code=-15, stack=raised(0, "").stack)
    assert findings(CAUSE, run(raised(0, "OSError"), ended)) == ()


def test_arguments_that_the_script_refuses(findings: Findings) -> None:
    parses = (user(9, "arguments = parser.parse_args()"),)
    refused = [ending(rank, exit_code=2, message=USAGE, stack=parses) for rank in (0, 1)]
    (finding,) = findings(CAUSE, run(*refused))
    assert finding.title == f"All ranks exit with code 2: {USAGE}"
    assert "at train.py:9" in finding.because
    assert USAGE in finding.fixes[0].paste


def test_the_only_process_of_a_run(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(raised(0, "ValueError", "bad shape")))
    assert finding.title == "The script raises ValueError: bad shape"
    assert finding.because.startswith("the only process of the run raised ValueError: bad shape")


def test_the_line_of_the_loop_is_named_where_evaluation_fails(findings: Findings) -> None:
    frames = [("<module>", 90), ("main", 80), ("train", 60), ("evaluate", 40), ("forward", 6)]
    stack = tuple(user(line, function=name) for name, line in frames)
    rows = [raised(rank, "ValueError", stack=stack) for rank in (0, 1)]
    (finding,) = findings(CAUSE, run(*rows))
    assert (
        "at train.py:6 in forward, called at train.py:40 in evaluate, train.py:60 in train, "
        "train.py:80 in main after 40 steps"
    ) in finding.because


def test_a_line_that_announces_another_is_shown_with_it(findings: Findings) -> None:
    message = 'Error(s) in loading state for N:\n\tMissing key(s): "a".\n\tOthers'
    (finding,) = findings(CAUSE, run(raised(0, "RuntimeError", message)))
    assert finding.title == (
        'The script raises RuntimeError: Error(s) in loading state for N: Missing key(s): "a".'
    )


def test_a_long_message_is_cut_in_the_title(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(raised(0, "ValueError", "x" * 500)))
    assert len(finding.title) < 150
    assert finding.title.endswith("…")


def test_a_long_line_is_cut_where_it_is_quoted(findings: Findings) -> None:
    long = raised(0, "ValueError", stack=(user(7, "f(" + "x" * 300),))
    (finding,) = findings(CAUSE, run(long))
    assert "xx…`) after 40 steps" in finding.because
    assert len(finding.because) < 250


def test_all_leave_by_a_code(findings: Findings) -> None:
    stack = (user(30, "sys.exit(5)"),)
    (finding,) = findings(CAUSE, run(*(ending(n, exit_code=5, stack=stack) for n in (0, 1))))
    assert finding.title == "All ranks exit with code 5"
    assert "at train.py:30 in main (`sys.exit(5)`)" in finding.because


def test_what_only_stderr_shows_is_likely(findings: Findings) -> None:
    rows = [raised(rank, "KeyError", "'x'", source="stderr") for rank in (0, 1)]
    (finding,) = findings(CAUSE, run(*rows))
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "section",
    [
        # One failed first, and the others lost it.
        run(raised(0, "ValueError", "x"), echoing(1)),
        run(echoing(0), echoing(1)),
        # Each of them has another error, or the same one elsewhere.
        run(raised(0, "ValueError", "x"), raised(1, "KeyError", "x")),
        run(raised(0, "ValueError", "x"), raised(1, "ValueError", "x", line=99)),
        run(raised(0, "ValueError", "x"), ending(1, "hung")),
        run(raised(0, "ValueError", "x"), ending(1, "finished", exit_code=0)),
        # Who kills all ranks is outside of the script.
        run(*(ending(rank, "killed", exit_code=-9) for rank in (0, 1))),
        run(*(ending(rank, exit_code=rank + 3) for rank in (0, 1))),
        run(*(ending(rank, "finished", exit_code=0) for rank in (0, 1))),
        run(*(ending(rank, "interrupted", exit_code=1) for rank in (0, 1))),
        # The log of one rank; the others may run.
        run(raised(0, "ValueError", "x"), log="train.log"),
        # The checks of memory report it.
        run(*(raised(rank, "OutOfMemoryError", error(device=rank)) for rank in (0, 1))),
    ],
)
def test_quiet(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()


ASSERTED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously"
ASSERTED += " reported at some other API call, so the stacktrace below might be incorrect."


def test_an_error_of_the_gpu_may_be_of_another_line(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(raised(0, "AcceleratorError", ASSERTED)))
    assert "CUDA_LAUNCH_BLOCKING=1" in finding.fixes[0].paste
    assert "may be another" in finding.fixes[0].summary


def xid(code: int) -> Log:
    return logged(event("xid", text=f"NVRM: Xid {code}", code=str(code), bus="0000:01:00"))


@pytest.mark.parametrize("code", [13, 31])
def test_an_access_out_of_bounds_that_the_driver_reports(findings: Findings, code: int) -> None:
    (finding,) = findings(CAUSE, xid(code))
    assert finding.severity is Severity.NOTE
    assert "the GPU is not at fault" in finding.because
    assert "compute-sanitizer" in finding.fixes[0].paste


@pytest.mark.parametrize("code", [43, 45, 48, 79, 9999])
def test_quiet_where_the_driver_reports_something_else(findings: Findings, code: int) -> None:
    assert findings(CAUSE, xid(code)) == ()
