"""What a script that caught its exception left in writing before it exited."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddoctor.evidence.frames import Frame
from ddoctor.recorder.script import Ending
from ddoctor.training.last_words import ERROR_FILE, added, of_thread

TRACEBACK = """Traceback (most recent call last):
  File "/home/u/train.py", line 7, in train
    check(batch)
    ~~~~~^^^^^^^
  File "/home/u/data.py", line 9, in check
    raise ValueError("bad sample")
data.Bad: sample 17
"""
LEFT = Ending(stack=(Frame(file="/home/u/train.py", line=30, function="main", text="sys.exit(1)"),))


def test_the_last_traceback_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ERROR_FILE, raising=False)
    printed = f"{TRACEBACK.replace('17', '16')}\n{TRACEBACK}INFO:trainer:cleaning up\n"
    found = added(LEFT, 1, printed, 0.0)
    assert (found.exception, found.source) == ("Bad", "stderr")
    assert found.message.startswith("sample 17")
    assert [(one.line, one.of_user) for one in found.stack] == [(7, True), (9, True)]


def test_sources_of_compiled_libraries_are_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ERROR_FILE, raising=False)
    frame = '  File "numpy/random/_common.pyx", line 333, in numpy.random._common.float_fill\n'
    printed = TRACEBACK.replace("data.Bad", f"{frame}data.Bad")
    found = added(LEFT, 1, printed, 0.0)
    assert [(one.line, one.of_user) for one in found.stack] == [(7, True), (9, True), (333, False)]


def test_the_error_file_of_torchelastic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    extra = {"py_callstack": TRACEBACK, "timestamp": "1"}
    path.write_text(json.dumps({"message": {"message": "Bad: sample 17", "extraInfo": extra}}))
    monkeypatch.setenv(ERROR_FILE, str(path))
    began = path.stat().st_mtime
    assert added(LEFT, 1, "", began - 1).source == "TORCHELASTIC_ERROR_FILE"
    # That of an earlier run.
    assert added(LEFT, 1, "", began + 1) == LEFT


@pytest.mark.parametrize("text", ["", "[]", "{", '{"message": "by hand"}', '{"message": {}}'])
def test_an_error_file_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "error.json"
    path.write_text(text)
    monkeypatch.setenv(ERROR_FILE, str(path))
    assert added(LEFT, 1, "", 0.0) == LEFT


@pytest.mark.parametrize(
    "line",
    [
        "train.py: error: argument --lr: invalid float value: 'fast'",
        "Error: No such option: --epoch",
        "ERROR: Could not consume arg: --epoch",
    ],
)
def test_arguments_that_the_script_refuses(line: str) -> None:
    ending = Ending(exception="ArgumentError", message="no", source="exit", stack=LEFT.stack)
    found = added(ending, 2, f"usage: train.py [-h]\n{line}\nFor help, run train.py --help\n", 0.0)
    assert (found.exception, found.message, found.stack) == ("", line, LEFT.stack)


@pytest.mark.parametrize(
    ("ending", "code", "printed"),
    [
        # It came to its own end after an exception that it had caught.
        (Ending(), 0, TRACEBACK),
        # A signal ended it; native code has the last word.
        (Ending(), -6, TRACEBACK),
        # It says itself why it exits.
        (Ending(message="no data", stack=LEFT.stack), 1, TRACEBACK),
        (Ending(exception="KeyError", message="'x'"), 1, TRACEBACK),
        # Not a whole traceback.
        (LEFT, 1, TRACEBACK.rpartition("data.Bad")[0]),
        (LEFT, 1, "the word Traceback (most recent call last): in a line\nValueError: x\n"),
        # A line of a log.
        (LEFT, 1, "error: a shard is missing, and left out\n"),
        (LEFT, 2, "step 10: 3 errors\n"),
    ],
)
def test_nothing_is_added(
    monkeypatch: pytest.MonkeyPatch, ending: Ending, code: int, printed: str
) -> None:
    monkeypatch.setenv(ERROR_FILE, os.devnull)
    assert added(ending, code, printed, 0.0) == ending


def test_the_exception_that_ended_a_thread() -> None:
    printed = f"step 1\nException in thread Thread-3 (feed):\n{TRACEBACK}step 2\n{TRACEBACK}"
    assert of_thread(printed) == "Bad: sample 17 at data.py:9 in check"


@pytest.mark.parametrize(
    "printed",
    [
        "",
        TRACEBACK,
        "Exception in thread Thread-3 (feed):",
        "Exception in thread Thread-3 (feed):\nnothing",
        "Exception in thread Thread-3 (feed):\nTraceback (most recent call last):\n",
        # Of a library alone.
        "Exception in thread Thread-3:\n"
        + TRACEBACK.replace("/home/u", "/usr/lib/python3/site-packages/tqdm"),
    ],
)
def test_no_exception_ended_a_thread_of_the_user(printed: str) -> None:
    assert of_thread(printed) == ""
