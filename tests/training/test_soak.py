"""Ten million short steps under `ddoctor run --steps all`: nothing grows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.training.conftest import MakeTraining

STEPS = 10_000_000
SCRIPT = """
import sys

import torch

torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
batch = torch.ones(1, 4)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
print("trained")
"""
EACH_SECONDS, SETTLED = 20.0, 6
"""Time between two looks, and looks until the training has settled."""
MIB = 2**20
MOST_OF_A_SUPERVISOR = 150 * MIB
MOST_GROWTH = 24 * MIB
"""The first judgement loads the checks, which takes 9 MiB; by steps alone it grew by 4."""
MOST_A_DAY = 100 * MIB


@pytest.mark.ward
@pytest.mark.timeout(5 * 3600)
def test_ten_million_steps(training: MakeTraining, tmp_path: Path) -> None:
    one = training(SCRIPT)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    memory: dict[int, list[int]] = defaultdict(list)
    disk: list[int] = []
    command = (
        *(sys.executable, "-m", "ddoctor", "run", "--steps=all", "--quiet"),
        *(f"--events={tmp_path / 'events.jsonl'}", f"--json={tmp_path / 'report.json'}"),
        *("--", sys.executable, str(one.script), str(STEPS)),
    )
    began = time.monotonic()
    with (
        (tmp_path / "output").open("w") as output,
        subprocess.Popen(
            command,
            env={**one.environment, "TMPDIR": str(temporary)},
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(EACH_SECONDS)
                for pid, size in resident(process.pid).items():
                    memory[pid].append(size)
                disk.append(held(temporary))
        finally:
            process.kill()
    printed = (tmp_path / "output").read_text()
    assert process.returncode == 0, printed
    assert "trained" in printed.splitlines()
    assert not one.running()
    lasting = {pid: sizes for pid, sizes in memory.items() if len(sizes) > 2 * SETTLED}
    grown = {pid: max(sizes) - sizes[SETTLED] for pid, sizes in lasting.items()}
    assert max(grown.values()) < MOST_GROWTH, grown
    # The script's own process is the largest.
    _, *supervisors = sorted((max(sizes) for sizes in lasting.values()), reverse=True)
    assert supervisors
    assert max(supervisors) < MOST_OF_A_SUPERVISOR
    days = (time.monotonic() - began) / 86_400
    assert max(disk) - disk[SETTLED] < MOST_A_DAY * days
    assert held(temporary) == 0


def resident(pid: int) -> Mapping[int, int]:
    """The bytes in memory of a process and of those below it."""
    found = {}
    try:
        top = psutil.Process(pid)
        for one in (top, *top.children(recursive=True)):
            found[one.pid] = one.memory_info().rss
    except psutil.NoSuchProcess:
        return found
    return found


def held(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(one.lstat().st_size for one in folder.rglob("*") if one.is_file())
