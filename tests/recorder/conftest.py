"""Scripts of users, run with and without the recorder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from ddoctor.recorder import recorded
from ddoctor.recorder.recorded import Facts
from ddoctor.recorder.script import Ending
from ddoctor.recorder.tape import COUNTS, DONE, LEAVING, PHASES, STOP_AT, StepRow, Tape
from tests.conftest import STEERING

LIMIT_SECONDS = 240


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What is seen of a script from outside."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class Recorded(Ran):
    """And what was recorded of it."""

    rows: Sequence[StepRow]
    done: int
    left: bool
    """Whether it was at the step at which it was told to stop."""
    facts: Facts | None
    ending: Ending | None

    def counted(self, name: str) -> list[int]:
        """Of each step, what is counted beside the phases."""
        return [int(row.counts[COUNTS.index(name)]) for row in self.rows]

    def phase(self, name: str) -> list[float]:
        """Seconds of each step."""
        return [row.phases[PHASES.index(name)] for row in self.rows]

    @property
    def known(self) -> Facts:
        """What the script's process wrote down."""
        assert self.facts is not None, self.stderr
        return self.facts


Run = Callable[..., Ran]
Record = Callable[..., Recorded]


@pytest.fixture
def bare(tmp_path: Path) -> Run:
    """Run a script by Python itself."""

    def run(source: str, *words: str) -> Ran:
        (tmp_path / "train.py").write_text(dedent(source))
        return Ran(**_run(tmp_path, [sys.executable, *(words or ("train.py",))], {}))

    return run


@pytest.fixture
def record_anew(tmp_path: Path) -> Record:
    """Run a script in the recorder, in a Python of its own: for what torch's import is part of."""

    def start(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> Any:
        command = [sys.executable, "-c", recorded.START, str(folder), *words]
        return _run(tmp_path, command, environment)

    return _recording(tmp_path, start)


@pytest.fixture
def record(tmp_path: Path, nursery: Nursery) -> Record:
    """Run a script in the recorder, to its end, or to the step ``stop_at``."""

    def start(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> Any:
        return nursery.run(tmp_path, [str(folder), *words], _environment(environment))

    return _recording(tmp_path, start)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """A process that has imported torch."""
    nursery = Nursery()
    yield nursery
    nursery.close()


class Nursery:
    """Starts scripts in children of a process that has imported torch."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.recorder.nursery"],
            env=_environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> Any:
        """Run the recorder with these words; what is seen of it from outside."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        stdout, stderr = folder / "stdout", folder / "stderr"
        order = {
            "folder": str(folder),
            "words": words,
            "environment": environment,
            "limit_seconds": LIMIT_SECONDS,
            "stdin": os.devnull,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        exit_code = int(self._process.stdout.readline())
        return {
            "exit_code": exit_code,
            "stdout": stdout.read_text(),
            "stderr": stderr.read_text(),
        }

    def close(self) -> None:
        """It ends where it is told nothing more."""
        self._process.communicate(timeout=LIMIT_SECONDS)


def _recording(
    tmp_path: Path, start: Callable[[Path, Sequence[str], Mapping[str, str]], Any]
) -> Record:
    def run(
        source: str,
        *words: str,
        stop_at: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> Recorded:
        folder = tmp_path / "recorded"
        folder.mkdir()
        tape = Tape(folder / recorded.TAPE, create=True)
        tape.head[STOP_AT] = stop_at
        (folder / "stack").touch()
        (folder / recorded.CRASH).write_text(str(folder / "stack"))
        (tmp_path / "train.py").write_text(dedent(source))
        ran = start(folder, words or ("train.py",), environment or {})
        if ran["exit_code"] < 0:
            # A signal ended it: tests show what it wrote, and so the stack.
            ran["stderr"] += (folder / "stack").read_text()
        ending = folder / recorded.ENDING
        return Recorded(
            **ran,
            rows=list(tape.rows()),
            done=int(tape.head[DONE]),
            left=bool(tape.head[LEAVING]),
            facts=recorded.read(folder, recorded.FACTS, recorded.Facts),
            ending=msgspec.json.decode(ending.read_bytes(), type=Ending)
            if ending.exists()
            else None,
        )

    return run


def _environment(more: Mapping[str, str]) -> Mapping[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(STEERING) and name != "PYTHONSAFEPATH"
    }
    return {**inherited, "CUDA_VISIBLE_DEVICES": "", **more}


def _run(folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> Any:
    done = subprocess.run(
        command,
        env=_environment(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    return {"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
