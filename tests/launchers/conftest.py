"""A Slurm for the tests, and a training as users write it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers.slurm import Slurm, slurm


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two hosts, which ends with the tests."""
    with slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The folder with ``train.py``, which takes its fault and a number of steps."""
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


TRAIN = """
import os, socket, sys, time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

fault, steps = sys.argv[1], int(sys.argv[2])


def launched(*names):
    return next((os.environ[name] for name in names if name in os.environ), None)


rank = int(launched("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
world = int(launched("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"))
os.environ.setdefault("MASTER_ADDR", "node-0" if "SLURM_STEP_ID" in os.environ else "localhost")
os.environ.setdefault("MASTER_PORT", "29500")


class Items(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        if fault == "loader":
            time.sleep(0.02)
        return torch.randn(64)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, value):
        time.sleep(0.3 if fault == "straggler" and rank == 1 else 0.02)
        return self.layers(value)


def main():
    dist.init_process_group("gloo", rank=rank, world_size=world)
    print("rank", rank, "on", socket.gethostname(), flush=True)
    model = DDP(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(DataLoader(Items(), batch_size=8)):
        if step == steps:
            break
        if step == 30 and rank == 1:
            if fault == "raises":
                raise ValueError("bad sample")
            if fault == "exits":
                sys.exit(3)
            if fault == "hangs":
                time.sleep(1_000_000)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("done", rank, flush=True)


main()
"""
