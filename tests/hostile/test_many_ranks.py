"""Many ranks on a small host: the run takes longer, and nobody is called lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from tests.hostile.surroundings import RUN, TORCHRUN, run

RANKS = 24
# Of one rank's supervisor, which imports torch; that of its script comes on top.
SUPERVISOR_BYTES = 160 * 2**20


@pytest.mark.ward
@pytest.mark.skipif(
    psutil.virtual_memory().available < 2 * RANKS * SUPERVISOR_BYTES,
    reason="too little memory for so many ranks",
)
def test_many_ranks_that_only_sleep(tmp_path: Path) -> None:
    path, report = tmp_path / "train.py", tmp_path / "report.json"
    path.write_text("import time\ntime.sleep(3)\nprint('the end', flush=True)\n")
    ran = run(*RUN, "--json", str(report), *TORCHRUN, str(RANKS), str(path))
    assert (ran.ends, len(ran.said)) == (RANKS, 0), ran.stderr
    told = json.loads(report.read_text())
    assert [one for one in told["findings"] if one["severity"] == "error"] == []
    assert told["verdict"] == "incomplete"
    assert "no optimizer took a step" in told["crashed"][0]["error"]


@pytest.mark.ward
def test_a_command_that_is_no_python() -> None:
    """`torchrun --no-python sleep`: ddoctor cannot record it, and says so before it starts."""
    ran = run(*RUN, *TORCHRUN, "2", "--no-python", "sleep", "1")
    assert ran.code == 2
    assert len(ran.said) == 1
    assert sys.executable not in ran.said[0]
