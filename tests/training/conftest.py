"""Trainings as users start them, under ddoctor and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from ddoctor.evidence import bundle
from ddoctor.evidence.section import Evidence
from ddoctor.proc import processes
from tests.conftest import STEERING

LIMIT_SECONDS = 240
MARK = "DDOCTOR_TEST_TRAINING"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
UNDER = ("-m", "ddoctor.probe", "run")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One training and its report."""

    exit_code: int
    stdout: str
    stderr: str
    report: Mapping[str, Any] | None
    evidence: Evidence
    left: Sequence[Sequence[str]]
    """The command lines of processes that are still there."""

    @property
    def told(self) -> Mapping[str, Any]:
        """The report, which must be there."""
        assert self.report is not None, self.stderr
        crashed = [one for one in self.report["crashed"] if one["check"] != "judging the run"]
        assert not crashed, crashed
        return self.report

    @property
    def first(self) -> Mapping[str, Any]:
        """The finding to fix first."""
        findings: Sequence[Mapping[str, Any]] = self.told["findings"]
        assert findings, (self.told, self.stderr)
        return findings[0]

    @property
    def alarms(self) -> list[str]:
        """The causes of warnings and errors."""
        return [one["cause"] for one in self.told["findings"] if one["severity"] != "note"]

    @property
    def complaints(self) -> list[str]:
        """What ddoctor itself says on stderr; torchrun repeats some of it."""
        return [one for one in self.stderr.splitlines() if one.startswith("ddoctor: ")]


class Training:
    """A script in a separate folder."""

    def __init__(self, folder: Path, source: str | Path, words: Sequence[str]) -> None:
        self._folder, self._words = folder, words
        self._mark = uuid.uuid4().hex
        if isinstance(source, str):
            self.script = folder / "train.py"
            self.script.write_text(dedent(source))
        else:
            self.script = source

    @property
    def environment(self) -> dict[str, str]:
        """Without the settings of who runs the tests, and with a mark."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
        return {**inherited, "CUDA_VISIBLE_DEVICES": "", MARK: self._mark}

    @contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """A launch command; nothing of it is left afterwards."""
        process = subprocess.Popen(
            command,
            env=self.environment,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            processes.end(1.0, **{MARK: self._mark})
            process.communicate()

    def bare(self) -> Trained:
        """As its user starts it."""
        with self.started(*TORCHRUN, str(self.script), *self._words) as process:
            return self.outcome(process)

    def under(self, *options: str) -> tuple[str, ...]:
        """The command that runs it under ddoctor."""
        files = (
            f"--json={self._folder / 'report.json'}",
            f"--bundle={self._folder / 'bundle.json'}",
        )
        return (*TORCHRUN, *UNDER, *files, *options, str(self.script), *self._words)

    def recorded(self, *options: str) -> Trained:
        """Under ddoctor, by default without control arms."""
        with self.started(*self.under(*(options or ("--no-prove",)))) as process:
            return self.outcome(process)

    def outcome(self, process: subprocess.Popen[str]) -> Trained:
        """How it ended."""
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
        report, evidence = self._folder / "report.json", self._folder / "bundle.json"
        return Trained(
            exit_code=process.returncode,
            stdout=stdout,
            stderr=stderr,
            report=json.loads(report.read_text()) if report.exists() else None,
            evidence=bundle.read(evidence) if evidence.exists() else Evidence(()),
            left=self.running(),
        )

    def running(self) -> list[list[str]]:
        """What was started for it, and is still there."""
        return [
            one.cmdline()
            for one in processes.carrying(**{MARK: self._mark})
            if one.status() != psutil.STATUS_ZOMBIE
        ]


MakeTraining = Callable[..., Training]


@pytest.fixture
def training(tmp_path: Path) -> MakeTraining:
    """A script, as source text or as a file, with its arguments."""

    def make(source: str | Path, *words: str) -> Training:
        return Training(tmp_path, source, words)

    return make
