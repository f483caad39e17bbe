"""What attach reads in the source of a training that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ddoctor.evidence.script import Script
from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.script_source import script_source
from tests.conftest import LIMIT_SECONDS, STEERING

WAITING = "import os, time\nimport other\n{before}\nopen('began', 'w').close()\ntime.sleep(1000)\n"
OTHER = "from torch.utils.data import DataLoader\nloader = DataLoader(range(9))\n"
MADE_BEFORE = -3600
"""Seconds from now, the age of files that are written before a run starts."""


def write(path: Path, text: str, age: int = MADE_BEFORE) -> None:
    path.write_text(text)
    when = time.time() + age
    os.utime(path, (when, when))


@contextmanager
def running(
    folder: Path, words: Sequence[str] = ("train.py",), before: str = ""
) -> Iterator[RankProcess]:
    write(folder / "train.py", WAITING.format(before=before))
    write(folder / "other.py", OTHER)
    command = (sys.executable, *words)
    process = psutil.Popen(command, cwd=folder)
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not list(folder.rglob("began")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield RankProcess(process=process, rank=0, world=1, command=command)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("words", [("train.py", "--rate", "1"), ("-m", "train")])
def test_the_script_and_its_modules(tmp_path: Path, words: Sequence[str]) -> None:
    with running(tmp_path, words) as rank:
        found = script_source(rank)
    assert found is not None
    assert found.files == ("train.py", "other.py")
    assert [one.at.file for one in found.of("torch.utils.data.DataLoader")] == ["other.py"]


@pytest.mark.parametrize("file", ["train.py", "other.py"])
def test_a_file_that_has_changed_since(tmp_path: Path, file: str) -> None:
    with running(tmp_path) as rank:
        write(tmp_path / file, OTHER, age=60)
        assert script_source(rank) is None


def test_the_folder_of_the_launcher_is_asked_as_well(tmp_path: Path) -> None:
    """Hydra changes that of the script."""
    inner = tmp_path / "outputs"
    inner.mkdir()
    with running(tmp_path, before="os.chdir('outputs')") as rank:
        assert script_source(rank) is None
        launcher = subprocess.Popen(["sleep", "1000"], cwd=tmp_path)
        rank = RankProcess(
            process=rank.process,
            rank=0,
            world=1,
            command=rank.command,
            ancestors=(launcher.pid,),
        )
        try:
            assert isinstance(script_source(rank), Script)
        finally:
            launcher.kill()
            launcher.wait()


def test_code_on_the_command_line(tmp_path: Path) -> None:
    with running(tmp_path) as rank:
        asked = RankProcess(
            process=rank.process, rank=0, world=1, command=(sys.executable, "-c", "import torch")
        )
        assert script_source(asked) is None


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    with running(tmp_path) as rank:
        pass
    assert script_source(rank) is None


TRAINED = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(640, 64), torch.randint(0, 8, (640,)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=16, sampler=sampler)
for epoch in range(100_000):
    AT_EPOCH
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            open("began", "w").close()
"""


@pytest.mark.ward
@pytest.mark.parametrize(
    ("at_epoch", "causes"),
    [("sampler.set_epoch(epoch)", set()), ("print(epoch)", {"missing-set-epoch"})],
)
def test_a_run_is_told_what_its_source_shows(
    tmp_path: Path, at_epoch: str, causes: set[str]
) -> None:
    write(tmp_path / "train.py", TRAINED.replace("AT_EPOCH", at_epoch))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    launcher = psutil.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", "train.py"),
        ],
        cwd=tmp_path,
        env={**inherited, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (tmp_path / "began").exists():
            assert launcher.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        done = subprocess.run(
            [sys.executable, "-m", "ddoctor", "attach", str(launcher.pid), "--json", "-"],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    finally:
        for one in [*launcher.children(recursive=True), launcher]:
            one.kill()
        launcher.wait()
    told = json.loads(done.stdout)
    assert "missing-set-epoch" not in told["skipped"]
    found = {one["cause"] for one in told["findings"] if one["severity"] != "note"}
    assert found & {"missing-set-epoch"} == causes
