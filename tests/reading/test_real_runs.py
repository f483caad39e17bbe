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
