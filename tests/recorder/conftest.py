"""Scripts of users, run with and without the recorder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from ddoctor.recorder import recorded
from ddoctor.recorder.recorded import Facts
from ddoctor.recorder.script import Ending
from ddoctor.recorder.tape import COUNTS, DONE, LEAVING, PHASES, STOP_AT, Row, Tape
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

    rows: Sequence[Row]
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
        return Ran(**_run(tmp_path, source, [sys.executable, *(words or ("train.py",))], {}))

    return run


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Run a script in the recorder, to its end, or to the step ``stop_at``."""

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
        command = [sys.executable, "-m", "ddoctor.recorder", str(folder), *(words or ("train.py",))]
        ran = _run(
            tmp_path,
            source,
            command,
            {"PYTHONSAFEPATH": "1", recorded.SAFE_PATH: "", **(environment or {})},
        )
        ending = folder / recorded.ENDING
        return Recorded(
            **ran,
            rows=list(tape.rows()),
            done=int(tape.head[DONE]),
            left=bool(tape.head[LEAVING]),
            facts=recorded.read(folder),
            ending=msgspec.json.decode(ending.read_bytes(), type=Ending)
            if ending.exists()
            else None,
        )

    return run


def _run(folder: Path, source: str, command: Sequence[str], environment: Mapping[str, str]) -> Any:
    (folder / "train.py").write_text(dedent(source))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(STEERING) and name != "PYTHONSAFEPATH"
    }
    done = subprocess.run(
        command,
        env={**inherited, "CUDA_VISIBLE_DEVICES": "", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    return {"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
