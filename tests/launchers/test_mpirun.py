"""What is told of trainings that Open MPI's mpirun starts on this host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import STEERING, free_port

LIMIT_SECONDS = 240


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with mpirun in it, also as root."""
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun (Open MPI)")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith((*STEERING, "SLURM"))}
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        command,
        env={**inherited, **allowed, "CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": str(free_port())},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def test_the_report_has_no_colours_in_a_file(tmp_path: Path) -> None:
    """Its ranks see a terminal, although it writes to a file."""
    words = ("-m", "ddoctor", "doctor", "--no-probes")
    report = run(tmp_path, "mpirun", "-n", "1", sys.executable, *words).stdout
    assert "skipped" in report
    assert "\x1b" not in report


@pytest.mark.ward
@pytest.mark.parametrize("fault", ["sound", "exits"])
def test_a_training(script: Path, fault: str) -> None:
    ours = (sys.executable, "-m", "ddoctor", "run", "--no-prove", "--json=report.json", "--")
    mpirun = ("mpirun", "--oversubscribe", "-n", "2", sys.executable)
    done = run(script, *ours, *mpirun, "train.py", fault, "1000000")
    told = json.loads((script / "report.json").read_text())
    found = [one for one in told["findings"] if one["severity"] != "note"]
    if fault == "sound":
        assert (found, done.returncode) == ([], 0), done.stderr
    else:
        assert [one["cause"] for one in found] == ["dead-rank"]
        assert found[0]["where"]["ranks"] == [1]
        assert done.returncode
