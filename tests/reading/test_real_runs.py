"""Logs that a real launcher and real ranks have written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor import engine
from ddoctor.models import Confidence, Report
from ddoctor.reading import reader
from tests import control_group
from tests.conftest import LIMIT_SECONDS

SCRIPT = """
    import os, sys, torch
    import torch.distributed as dist

    def label(names, number):
        return names[number]

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(12):
        model(torch.randn(4, 8)).sum().backward()
        if sys.argv[1] == "fails" and dist.get_rank() == 1 and step == 9:
            label({"a": 1}, "b")
        print(f"step {step}: loss 0.3, no error", flush=True)
    dist.barrier()
    os._exit(0)  # gloo aborts now and then while Python ends
"""


def report_of(folder: Path, what: str, *options: str) -> Report:
    (folder / "train.py").write_text(dedent(SCRIPT))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", *options, "train.py", what]
    with (folder / "train.log").open("wb") as log:
        subprocess.run(
            command, cwd=folder, stdout=log, stderr=log, timeout=LIMIT_SECONDS, check=False
        )
    evidence, _ = reader.read([folder / ("logs" if options else "train.log")])
    return engine.examine(evidence, "diagnose")


LOG_DIR = ("--redirects", "3", "--log-dir", "logs")


@pytest.mark.parametrize("options", [(), pytest.param(LOG_DIR, marks=pytest.mark.ward)])
def test_the_rank_that_failed_first_is_named(tmp_path: Path, options: tuple[str, ...]) -> None:
    (finding,) = report_of(tmp_path, "fails", *options).findings
    assert (finding.cause, finding.where.ranks) == ("dead-rank", (1,))
    assert finding.confidence >= Confidence.LIKELY
    assert "raised KeyError: 'b' at train.py:6 in label" in finding.because
    assert ("(1/stderr.log:" if options else "(train.log:") in finding.because


def test_a_healthy_run_has_no_finding(tmp_path: Path) -> None:
    assert report_of(tmp_path, "ends").findings == ()


LOSES_A_RANK = """
    import datetime, os, sys, time, torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    for step in range(4):
        dist.all_reduce(torch.ones(8))
        if dist.get_rank() == 1 and step == 3:
            if sys.argv[1] == "leaves":
                os._exit(3)
            if sys.argv[1] == "sleeps":
                time.sleep(1000)
            kept = []
            while True:
                kept.append(torch.ones(4_000_000))
    dist.barrier()
"""


def lost(folder: Path, what: str, *before: str) -> Path:
    """The log of two ranks, of which the second one is lost."""
    (folder / "train.py").write_text(dedent(LOSES_A_RANK))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    log = folder / "train.log"
    with log.open("wb") as file:
        subprocess.run(
            [*before, *torchrun, "--nproc-per-node", "2", "train.py", what],
            cwd=folder,
            stdout=file,
            stderr=file,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    return log


def told(*paths: Path) -> Report:
    evidence, _ = reader.read(paths)
    return engine.examine(evidence, "diagnose")


@pytest.mark.ward
def test_a_rank_that_left_without_a_word(tmp_path: Path) -> None:
    first = told(lost(tmp_path, "leaves")).findings[0]
    assert (first.cause, first.where.ranks) == ("dead-rank", (1,))
    assert "ended with exit code 3" in first.because


@pytest.mark.ward
def test_a_rank_that_the_launcher_ended_is_no_cause(tmp_path: Path) -> None:
    """The other one has waited too long, and only then torchrun ends it."""
    log = lost(tmp_path, "sleeps")
    assert "closing signal SIGTERM" in log.read_text()
    findings = told(log).findings
    assert {one.cause for one in findings} == {"first-failure-masked"}
    assert {one.confidence for one in findings} == {Confidence.POSSIBLE}
    assert findings[0].title.startswith("A rank waited too long for another one")


@pytest.mark.ward
def test_a_rank_that_the_oom_killer_ended(tmp_path: Path) -> None:
    with control_group.group(*control_group.memory(1_200 * 2**20)) as group:
        enters = f'echo $$ > {group / "cgroup.procs"}; exec "$@"'
        log = lost(tmp_path, "grows", "sh", "-ec", enters, "sh")
    first = told(log).findings[0]
    assert (first.cause, first.confidence) == ("host-ram-oom", Confidence.POSSIBLE)
    kernel = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    if "Killed process" not in kernel:
        pytest.skip("the kernel's log cannot be read here")
    (tmp_path / "dmesg.txt").write_text(kernel)
    first = told(log, tmp_path / "dmesg.txt").findings[0]
    assert (first.cause, first.where.ranks) == ("host-ram-oom", (1,))
    assert first.confidence is Confidence.CERTAIN
