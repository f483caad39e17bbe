"""Many ranks on a small host: the run takes longer, and nobody is called lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from tests.hostile.surroundings import RUN, TORCHRUN, run

# Two CPUs start 400 ranks in 150 s.
LIMIT_SECONDS = 600

# A rank's supervisor and its script, neither of which imports torch: 36 MiB, and room for others.
RANK_BYTES = 50 * 2**20
SLEEP = """
import os, time
time.sleep(3)
maps = open(f"/proc/{os.getppid()}/maps").read()
print("the end", *(name for name in ("libtorch", "numpy") if name in maps), flush=True)
"""


def some(ranks: int) -> object:
    """So many ranks, if this host has the memory for them."""
    little = psutil.virtual_memory().available < ranks * RANK_BYTES
    skip = pytest.mark.skipif(little, reason="too little memory for so many ranks")
    return pytest.param(ranks, marks=skip)


@pytest.mark.ward
@pytest.mark.parametrize("ranks", [some(4), some(200), some(400)])
def test_many_ranks_that_only_sleep(tmp_path: Path, ranks: int) -> None:
    """All scripts come to their ends, all records arrive, and no supervisor imports torch."""
    path, report = tmp_path / "train.py", tmp_path / "report.json"
    path.write_text(SLEEP)
    words = (*RUN, "--json", str(report), *TORCHRUN, str(ranks), str(path))
    ran = run(*words, environment={"TMPDIR": str(tmp_path)}, limit=LIMIT_SECONDS)
    assert (ran.ends, ran.said) == (ranks, []), ran.stderr
    assert "libtorch" not in ran.stdout
    assert "numpy" not in ran.stdout
    told = json.loads(report.read_text())
    assert (told["verdict"], told["findings"]) == ("incomplete", [])
    assert "the script came to its end, and no optimizer took a step" in told["crashed"][0]["error"]
    assert told["world"]["ranks"] == ranks
    assert list(tmp_path.glob("ddoctor-*")) == []


@pytest.mark.ward
def test_a_command_that_is_no_python() -> None:
    """`torchrun --no-python sleep`: ddoctor cannot record it, and says so before it starts."""
    ran = run(*RUN, *TORCHRUN, "2", "--no-python", "sleep", "1")
    assert ran.code == 2
    assert len(ran.said) == 1
    assert sys.executable not in ran.said[0]
