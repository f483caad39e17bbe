"""Launchers print no page about a rank whose script came to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.conftest import MakeTraining

BIN = Path(sys.executable).parent
UNDER = (str(BIN / "ddoctor"), "run", "--no-prove", "--")
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2")
MODULE = (sys.executable, "-m", "torch.distributed.run", *TORCHRUN[1:])
GPUS = ("--multi_gpu", "--num_processes=2", "--main_process_port=0")
ACCELERATE = (str(BIN / "accelerate"), "launch", *GPUS)
SCRIPT = """
    import os, sys, time, torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    assert "DDOCTOR_LAUNCHER" not in os.environ

    def collate(items):
        time.sleep(float(sys.argv[1]))
        return torch.stack(items)

    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = torch.randn(4000, 512)
    for batch in DataLoader(data, 8, collate_fn=collate, sampler=DistributedSampler(data)):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
KEEPS = """
import signal
before = signal.getsignal(signal.SIGINT)
import ddoctor.training.rank, ddoctor.training.report
assert signal.getsignal(signal.SIGINT) is before
"""
PAGE = ("Traceback", "FAILED", "exitcode")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(TORCHRUN, id="torchrun"),
        pytest.param(MODULE, id="module"),
        pytest.param(ACCELERATE, id="accelerate"),
    ],
)
@pytest.mark.parametrize("slow", [0.02, 0.0])
@pytest.mark.ward
def test_the_report_is_the_last_word(
    training: MakeTraining, launcher: tuple[str, ...], slow: float
) -> None:
    """And its exit code is that of the launch."""
    run = training(SCRIPT)
    with run.started(*UNDER, *launcher, str(run.script), str(slow)) as process:
        told = run.outcome(process)
    assert process.returncode == (slow > 0), told.stdout + told.stderr
    assert not [word for word in PAGE if word in told.stderr], told.stderr


def test_a_rank_handles_ctrl_c_itself() -> None:
    """Only the launcher's process ends at once, during its imports."""
    subprocess.run([sys.executable, "-c", KEEPS], check=True, timeout=120)
