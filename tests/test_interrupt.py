"""Ctrl-C, SIGTERM, a stopped rank: what was measured is shown, and no process stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ddoctor.recorder import recorded

MARK = "DDOCTOR_TEST_MARK"

# Receives a signal in native code, which may turn KeyboardInterrupt into an error of its own.
SIGNALLED = """
import signal, sys
from ddoctor import __main__, cli
def app(**options):
    try:
        # As where a dataclass is defined.
        exec("signal.raise_signal(int(sys.argv[1]))")
    except KeyboardInterrupt:
        if len(sys.argv) > 2:
            raise ImportError("cannot load module more than once per process")
        raise
    print("survived")
cli.app = app
__main__.main()
"""

Started = Callable[[], tuple[subprocess.Popen[str], str]]


def marked(mark: str) -> list[psutil.Process]:
    """Every process that inherited the mark, however far it went from its parents."""

    def has_it(process: psutil.Process) -> bool:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            return alive and process.environ().get(MARK) == mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    return [process for process in psutil.process_iter() if has_it(process)]


@pytest.fixture
def started() -> Iterator[Started]:
    marks = []

    def start() -> tuple[subprocess.Popen[str], str]:
        marks.append(uuid.uuid4().hex)
        process = subprocess.Popen(
            [sys.executable, "-m", "ddoctor", "doctor", "--json", "-"],
            env=os.environ | {MARK: marks[-1]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return process, marks[-1]

    yield start
    for mark in marks:
        for process in marked(mark):
            process.kill()


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.005)


def interrupted(process: subprocess.Popen[str], number: int) -> dict[str, object]:
    process.send_signal(number)
    output, errors = process.communicate()
    assert "Traceback" not in errors
    assert process.returncode in (1, 2), errors
    report = json.loads(output)
    assert report["verdict"] == "incomplete"
    assert any("interrupted" in crash["error"] for crash in report["crashed"])
    return dict(report)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_probes_run(started: Started, number: int) -> None:
    process, mark = started()
    until(lambda: len(marked(mark)) >= 3, process)  # doctor and two ranks
    report = interrupted(process, number)
    assert report["skipped"], "the checks were still run on what there was"
    assert marked(mark) == []


def test_a_killed_doctor_takes_its_ranks_along(started: Started) -> None:
    process, mark = started()
    until(lambda: rank(1, mark) is not None, process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while marked(mark):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.ward
def test_between_its_first_breath_and_its_last(started: Started) -> None:
    """Wherever it is hit: no traceback, nothing left; a report as soon as there is evidence."""
    for delay in (0.3, 1.0, 2.5, 5.0):
        process, mark = started()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        assert "Traceback" not in errors, (delay, errors)
        assert marked(mark) == [], delay
        if output:
            json.loads(output)


def rank(number: int, mark: str) -> psutil.Process | None:
    """The process of a rank of the probes, once it is there."""
    for process in marked(mark):
        with suppress(psutil.Error):
            environment = process.environ()
            if (
                environment.get("RANK") == str(number)
                and "ddoctor.probing.worker" in process.cmdline()
            ):
                return process
    return None


@pytest.mark.ward
def test_a_rank_that_is_stopped_is_the_first_finding(started: Started) -> None:
    """doctor ends by itself, names the rank, and leaves nothing behind."""
    process, mark = started()
    until(lambda: rank(1, mark) is not None, process)
    victim = rank(1, mark)
    assert victim is not None
    victim.send_signal(signal.SIGSTOP)
    output, _ = process.communicate()
    assert process.returncode == 1
    report = json.loads(output)
    assert report["verdict"] == "incomplete"
    assert report["findings"][0]["cause"] == "rank-stuck-outside-collective"
    assert report["findings"][0]["where"]["ranks"] == [1]
    assert "stopped by a signal" in report["findings"][0]["because"]
    assert marked(mark) == []


def signalled(
    folder: Path, number: int, *words: str, ignored: bool = False
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a ddoctor that gets the signal."""
    # Only of a module does Python's own exit code depend on how it was interrupted.
    (folder / "signalled.py").write_text(SIGNALLED)

    def ignore() -> None:
        if ignored:
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-m", "signalled", str(number), *words],
        cwd=folder,
        preexec_fn=ignore,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


@pytest.mark.parametrize("number", ENDING)
def test_the_exit_code_names_the_signal(tmp_path: Path, number: int) -> None:
    assert signalled(tmp_path, number) == (128 + number, "", "ddoctor: interrupted\n")


def test_an_interrupted_import_is_an_interruption(tmp_path: Path) -> None:
    code = 128 + signal.SIGINT
    assert signalled(tmp_path, signal.SIGINT, "failing") == (code, "", "ddoctor: interrupted\n")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As SIGHUP under nohup."""
    assert signalled(tmp_path, signal.SIGHUP, ignored=True) == (0, "survived\n", "")


def catches_ctrl_c(pid: int) -> bool:
    """Whether the process handles SIGINT itself, as Python does from its own start."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize(
    "words", [("-c", recorded.START, "."), ("-m", "ddoctor.probe", "run")], ids=["script", "rank"]
)
def test_ctrl_c_while_a_rank_starts_shows_no_traceback(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(100)")
    with subprocess.Popen(
        [sys.executable, *words, "train.py"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: catches_ctrl_c(process.pid), process)
        until(lambda: not catches_ctrl_c(process.pid), process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (-signal.SIGINT, "")
