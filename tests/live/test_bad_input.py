"""What cannot be looked at is said in one line, with what to do; and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from tests.live.conftest import LIMIT_SECONDS, StartLive
from tests.namespace import namespace

NOBODY = 65534
WITH_TORCH = "import torch, time; print('ready', flush=True); time.sleep(1000)"


def attach(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddoctor", "attach", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def told(*words: str) -> str:
    """The one line of an attach that could not look."""
    done = attach(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("ddoctor: ")
    return line


@contextmanager
def python(code: str, *within: str, **variables: str) -> Iterator[psutil.Popen]:
    """A process that runs this, once it has said that it is ready."""
    process = psutil.Popen(
        [*within, sys.executable, "-c", code],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_log_that_is_not_there() -> None:
    with python(WITH_TORCH) as process:
        line = told(str(process.pid), "--log", "none.log")
    assert line == "ddoctor: --log: none.log cannot be read: No such file or directory"


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert f"there is no process {process.pid}" in told(str(process.pid))


def test_a_process_without_torch() -> None:
    with python("import time; print('ready', flush=True); time.sleep(1000)") as process:
        line = told(str(process.pid))
        assert f"process {process.pid} is no Python process with torch loaded" in line
        assert "launcher" in line
        assert process.is_running()


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--seconds", "1"), ("--seconds", "nan")])
def test_no_time_to_look(words: tuple[str, ...]) -> None:
    assert "at least 3" in told(*words)


@pytest.mark.ward
def test_two_jobs_on_one_host() -> None:
    first = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    second = first | {"MASTER_PORT": "2"}
    with python(WITH_TORCH, **first) as one, python(WITH_TORCH, **second) as two:
        line = told(str(one.pid), str(two.pid))
        assert "2 jobs run on this host" in line
        assert "--job" in line
        assert "no job 'third' on this host" in told(str(one.pid), str(two.pid), "--job", "third")


def test_two_jobs_that_are_called_the_same() -> None:
    """As in two containers, each with a localhost of its own."""
    words = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    with (
        namespace() as within,
        python(WITH_TORCH, **words) as one,
        python(WITH_TORCH, *within, **words) as two,
    ):
        line = told(str(one.pid), str(two.pid))
        assert "2 jobs run on this host" in line
        assert f"'process {one.pid}' with 1 rank" in line
        assert f"'process {two.pid}' with 1 rank" in line


@pytest.mark.ward
@pytest.mark.parametrize(
    ("looked", "words"),
    [
        (0, ()),
        pytest.param(0, ("--native",), marks=pytest.mark.ward),
        pytest.param(1, (), marks=pytest.mark.ward),
        pytest.param(1, ("--native",), marks=pytest.mark.ward),
    ],
)
def test_ctrl_c_in_the_middle(start: StartLive, looked: int, words: tuple[str, ...]) -> None:
    """Before anything can be told, and after the first look, which is told of."""
    live = start()
    live.wait_for(5)
    asked = ("attach", str(live.launcher.pid), "--seconds", "60", *words)
    process = subprocess.Popen(
        [sys.executable, "-m", "ddoctor", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    spies: set[int] = set()
    # One for each rank in each look.
    while len(spies) < 1 + 2 * looked:
        assert process.poll() is None
        for one in psutil.Process(process.pid).children():
            with suppress(psutil.Error):  # ended meanwhile
                spies |= {one.pid} if "py-spy" in one.name() else set()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert "Traceback" not in errors
    if looked:
        # Whether so little was enough to judge by or not.
        assert re.search(r"2 of 2 ranks, for [3-6] s", output)
    else:
        assert (process.returncode, errors) == (130, "ddoctor: interrupted\n")
    # Nobody was left stopped.
    live.wait_for(live.step(0) + 3)


@pytest.mark.ward
def test_a_rank_that_ends_meanwhile(start: StartLive) -> None:
    live = start(plain=True)
    live.wait_for(5)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ddoctor", "attach", str(live.launcher.pid)),
            *("--seconds", "3", "--json", "-"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any("py-spy" in one.name() for one in psutil.Process(process.pid).children()):
        assert process.poll() is None
    live.ranks()[1].kill()
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert "Traceback" not in errors
    report = json.loads(output)
    assert (report["verdict"], report["findings"]) == ("incomplete", [])
    assert "ended during the samples" in report["crashed"][0]["error"]


def _nobody_may_start_python() -> bool:
    """Where it lies in a folder of root's own, say."""
    try:
        return subprocess.run([sys.executable, "-c", ""], user=NOBODY, cwd="/").returncode != 0
    except PermissionError:
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
@pytest.mark.skipif(_nobody_may_start_python(), reason="no other user may start this Python")
def test_another_users_process() -> None:
    with python(WITH_TORCH) as process:
        done = subprocess.run(
            [sys.executable, "-m", "ddoctor", "attach", str(process.pid)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            user=NOBODY,
            cwd="/",
        )
    assert done.returncode == 2
    assert f"process {process.pid} cannot be inspected: it belongs to another user" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a capability to do without")
@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="no setpriv: apt-get install util-linux"
)
def test_ptrace_is_forbidden() -> None:
    """What needs none is told: that it is there, and whether it is on a CPU."""
    without = ("setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace")
    with python(WITH_TORCH) as process:
        done = subprocess.run(
            [
                *(*without, sys.executable, "-m", "ddoctor", "attach", str(process.pid)),
                *("--seconds", "3"),
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    told = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stderr
    assert told.startswith(
        "incomplete: the stack of rank 0 was not seen: ptrace is forbidden: the "
    )
    assert "container needs the capability SYS_PTRACE" in told
    assert "sampled 1 of 1 ranks" in told
    assert "(0% on a CPU)" in told
