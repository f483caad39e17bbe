"""`ddoctor run --steps all`: what ends a rank, a supervisor or the terminal, the others tell."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import subprocess
import termios
import time

import pytest

from tests.conftest import free_port
from tests.training.conftest import LIMIT_SECONDS, MakeTraining, Training
from tests.training.test_lost_ranks import (
    LOST_SECONDS,
    SCRIPT,
    begun,
    by_hand,
    ended,
    scripts,
)

LONG = 100_000

pytestmark = pytest.mark.ward


def options(training: Training) -> tuple[str, ...]:
    folder = training.script.parent
    return (
        "--steps=all",
        f"--events={folder / 'events.jsonl'}",
        f"--json={folder / 'report.json'}",
    )


def first(training: Training) -> dict[str, object]:
    """The finding to fix first."""
    report = json.loads((training.script.parent / "report.json").read_text())
    found: dict[str, object] = report["findings"][0]
    return found


def of_rank_one(found: dict[str, object]) -> bool:
    return isinstance(found["where"], dict) and found["where"]["ranks"] == [1]


def test_a_script_that_is_killed(training: MakeTraining) -> None:
    one = training(SCRIPT)
    with by_hand(one, free_port(), *options(one), steps=LONG) as ranks:
        begun(ranks)
        time.sleep(4)
        _, script = scripts(ranks[1])
        script.kill()
        (code, _, stderr), (killed, *_) = ended(ranks)
    assert code != 0, stderr
    assert killed == -9
    found = first(one)
    assert found["cause"] == "dead-rank"
    assert of_rank_one(found)
    assert "SIGKILL" in str(found["because"])
    (event,) = (one.script.parent / "events.jsonl").read_text().splitlines()
    assert json.loads(event)["event"] == "ended"
    assert not one.running()


def test_a_supervisor_that_is_killed(training: MakeTraining) -> None:
    one = training(SCRIPT)
    with by_hand(one, free_port(), *options(one), steps=LONG) as ranks:
        begun(ranks)
        time.sleep(4)
        began = time.monotonic()
        ranks[1].kill()
        code, _, stderr = ended(ranks[:1])[0]
        assert time.monotonic() - began < LOST_SECONDS
        assert code != 0, stderr
        assert of_rank_one(first(one))
        assert not one.running()


def test_the_supervisor_of_rank_0_that_is_killed(training: MakeTraining) -> None:
    """Nobody is left who judges; the other rank ends as its script does."""
    one = training(SCRIPT)
    with by_hand(one, free_port(), *options(one), steps=LONG) as ranks:
        begun(ranks)
        time.sleep(4)
        began = time.monotonic()
        ranks[0].kill()
        code, _, stderr = ended(ranks[1:])[0]
        assert time.monotonic() - began < LOST_SECONDS
        assert code != 0
        assert "Traceback" in stderr
        assert not [line for line in stderr.splitlines() if "/ddoctor/" in line], stderr
        assert not one.running()


def test_a_terminal_that_is_closed(training: MakeTraining) -> None:
    """The script gets SIGHUP, as without ddoctor, and its report is written."""
    one = training(SCRIPT)
    screen, keyboard = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    words = (*one.under(*options(one)), str(LONG))
    with subprocess.Popen(
        words,
        env=one.environment,
        cwd=one.script.parent,
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
        preexec_fn=own_terminal,
    ) as process:
        os.close(keyboard)
        output = b""
        while output.count(b"begun") < 2:
            output += os.read(screen, 65536)
        time.sleep(6)
        os.close(screen)
        assert process.wait(LIMIT_SECONDS) != 0
    assert not one.running()
    assert (one.script.parent / "report.json").exists()
