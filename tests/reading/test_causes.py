"""What logs say of each cause, in the forms of what writes them; and sound runs are quiet."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor import check_catalog, engine
from ddoctor.models import Confidence, Severity
from ddoctor.reading import reader
from tests.reading.conftest import LINES, Diagnose

SICK = [(one["cause"], one["text"]) for one in LINES["sick"]]
HARMLESS = [(one["cause"], one["text"]) for one in LINES["harmless"]]
SOUND = [pytest.param(one["text"], id=one["name"]) for one in LINES["sound"]]


@pytest.mark.parametrize(("cause", "text"), SICK, ids=[cause for cause, _ in SICK])
def test_the_cause_comes_first(diagnose: Diagnose, cause: str, text: str) -> None:
    first = diagnose(text).findings[0]
    assert (first.cause, first.severity > Severity.NOTE) == (cause, True)
    assert first.fixes


@pytest.mark.parametrize(("cause", "text"), HARMLESS, ids=[cause for cause, _ in HARMLESS])
def test_what_does_no_harm_is_a_note(diagnose: Diagnose, cause: str, text: str) -> None:
    report = diagnose(text)
    assert [one.cause for one in report.findings] == [cause]
    assert report.exit_code == 0


@pytest.mark.parametrize("text", SOUND)
def test_a_sound_run_is_quiet(diagnose: Diagnose, text: str) -> None:
    report = diagnose(text)
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []
    assert report.exit_code == 0


def test_the_line_is_named(diagnose: Diagnose) -> None:
    report = diagnose(
        """
        step 10 loss 3.21
        [rank7]: torch.AcceleratorError: CUDA error: invalid device ordinal
        [rank6]: torch.AcceleratorError: CUDA error: invalid device ordinal
        """
    )
    (finding,) = report.findings
    assert finding.because.startswith("train.log:2 of rank 7: a process asked for a GPU")
    assert [one.name for one in finding.evidence] == ["train.log:2"]
    assert finding.consequences == ("script-error",)


def test_an_unknown_error_is_told_and_never_as_sure(diagnose: Diagnose) -> None:
    report = diagnose(
        """
        [rank3]: Traceback (most recent call last):
        [rank3]:   File "/home/ann/train.py", line 12, in <module>
        [rank3]:     main()
        [rank3]:   File "/home/ann/train.py", line 8, in main
        [rank3]:     labels = table[key]
        [rank3]: KeyError: 'cat'
        """
    )
    (finding,) = report.findings
    assert (finding.cause, finding.where.ranks) == ("script-error", (3,))
    assert finding.title == "The script raises KeyError: 'cat'"
    assert finding.confidence is Confidence.POSSIBLE
    assert "rank 3 raised KeyError: 'cat' at train.py:8 in main" in finding.because
    assert finding.where.ranks == (3,)


def test_each_cause_exists() -> None:
    assert {cause for cause, _ in (*SICK, *HARMLESS)} <= set(check_catalog.names())


TABLE = """
    Root Cause (first observed failure):
    [0]:
      rank      : 1 (local_rank: 1)
      exitcode  : -6 (pid: 5105)
      error_file: <N/A>
      traceback : Signal 6 (SIGABRT) received by PID 5105
"""


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            "      what():  shard 3 has no index",
            "its last output 'std::runtime_error: shard 3 has no index',",
        ),
        (
            "terminate called without an active exception",
            "its last output 'terminate called without an active exception',",
        ),
        ("the training has terminated", "killed by SIGABRT (native code aborted) (train.log:"),
    ],
)
def test_what_cpp_prints_before_it_aborts(diagnose: Diagnose, lines: str, says: str) -> None:
    (finding,) = diagnose(f"    {lines}\n{TABLE}").findings
    assert finding.cause == "dead-rank"
    assert says in finding.because


@pytest.mark.parametrize("blanks", [1, 4, 7])
def test_lines_that_are_quoted_with_blanks_before_them(tmp_path: Path, blanks: int) -> None:
    lines = (
        "step 1 loss 3.2",
        "Traceback (most recent call last):",
        '  File "/home/ann/train.py", line 8, in main',
        "    labels = table[key]",
        "KeyError: 'cat'",
        "[rank1]:[E1120 10:00:00 ProcessGroupNCCL.cpp:616] late",
    )
    path = tmp_path / "train.log"
    path.write_text("".join(f"{' ' * blanks}{line}\n" for line in lines))
    (finding,) = engine.examine(reader.read([path])[0], "diagnose").findings
    assert finding.title == "The script raises KeyError: 'cat'"
    assert "at train.py:8" in finding.because


CAUGHT = """\
{0}step 10 loss 2.2
{0}Traceback (most recent call last):
{0}  File "/a/train.py", line 30, in main
{0}    tracker.start()
{0}ConnectionError: no tracker
{1}step 20 loss 2.1
{1}saved
"""


@pytest.mark.parametrize(
    ("writer", "then", "fails"),
    [
        ("", "", False),
        ("[rank1]: ", "[rank1]: ", False),
        # Another rank takes another step, or there was no progress before.
        ("[rank1]: ", "[rank0]: ", True),
        ("[rank1]: ", "[rank1]: WARNING ", True),
    ],
)
def test_an_exception_after_which_its_writer_continues_is_no_failure(
    diagnose: Diagnose, writer: str, then: str, fails: bool
) -> None:
    found = [one.cause for one in diagnose(CAUGHT.format(writer, then)).findings]
    assert found == (["script-error"] if fails else [])
