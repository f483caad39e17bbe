"""`ddoctor run -- COMMAND` reads the command and its script first."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.training import review
from tests.training.conftest import MakeTraining

BIN = Path(sys.executable).parent
UNDER = (str(BIN / "ddoctor"), "run", "--no-prove", "--steps=20", "--json=report.json")
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2")
SCRIPT = """
    import argparse, os, torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    assert "DDOCTOR_REVIEW" not in os.environ
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    assert not [one for one in links if os.path.lexists(one) and "memfd" in os.readlink(one)]

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.25)
    arguments = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        os.environ |= dict(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), arguments.lr)
    data = TensorDataset(torch.randn(80, 512))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler, num_workers=0)
    for epoch in range(1000):
        # HERE
        for (batch,) in loader:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
"""


def told(
    training: MakeTraining, source: str, launcher: tuple[str, ...]
) -> tuple[dict[str, Any], str]:
    """The report of a run, and what the terminal showed."""
    run = training(source)
    report = run.script.with_name("report.json")
    command = (*UNDER[:-1], f"--json={report}", "--", *launcher, str(run.script))
    with run.started(*command) as process:
        output = run.outcome(process)
    assert report.exists(), output.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found, output.stdout


def test_it_outlives_the_command_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(review.VARIABLE, "")
    before = {*os.listdir("/proc/self/fd")}
    review.give(["torchrun", "--nproc-per-node", "2", "train.py"])
    assert os.environ[review.VARIABLE]
    taken = review.take(wanted=True)
    assert [type(one) for one in review.read(taken, ())] == [Launch, Script]
    assert review.VARIABLE not in os.environ
    assert {*os.listdir("/proc/self/fd")} == before


@pytest.mark.parametrize("command", [["true"], ["torchrun", "--no-such"], ["bash", "none.sh"]])
def test_what_cannot_be_read_is_no_trouble(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(review.VARIABLE, "/proc/1/fd/9 another")
    review.give(command)
    assert len(review.read(review.take(wanted=True), command)) in (0, 1)


@pytest.mark.parametrize("words", [("train.py", "--lr", "1"), ("-m", "train"), ("-m", "own.train")])
def test_where_nothing_was_handed_over_the_source_is_read(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``torchrun -m ddoctor.probe run train.py``; how ranks are started is not known then."""
    for folder in (tmp_path, tmp_path / "own"):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(review.VARIABLE, raising=False)
    assert [type(one) for one in review.read(review.take(wanted=True), words)] == [Script]


@pytest.mark.parametrize("words", [(), ("none.py",), ("-m", "none"), ("-c", "print()")])
def test_where_there_is_no_source_nothing_is_found(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not [*review.read(b"", words)]


@pytest.mark.ward
def test_what_was_written_and_measured_is_certain_and_told_once(training: MakeTraining) -> None:
    report, shown = told(training, SCRIPT, TORCHRUN)
    (finding,) = [one for one in report["findings"] if one["cause"] == "missing-set-epoch"]
    assert finding["confidence"] == "certain"
    assert "epochs began with the same batches" in finding["because"]
    assert "1 host × 2 ranks, by torchrun" in shown
    assert "0.25 (train.py:" in shown


@pytest.mark.ward
@pytest.mark.parametrize("launcher", [TORCHRUN, (sys.executable,)], ids=["torchrun", "python"])
def test_what_the_source_let_expect_and_the_run_refutes_is_not_told(
    training: MakeTraining, launcher: tuple[str, ...]
) -> None:
    """A loader without workers, and values read back in each step: both cost next to nothing."""
    sound = SCRIPT.replace("# HERE", "sampler.set_epoch(epoch)")
    report, shown = told(training, sound, launcher)
    told_of = {one["cause"] for one in report["findings"]}
    assert not told_of & {"dataloader-bottleneck", "step-loop-overhead", "missing-set-epoch"}, shown
    assert "starts" in shown
