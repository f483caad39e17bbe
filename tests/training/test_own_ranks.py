"""Ranks that a script starts itself: nothing records them, so they are looked at from outside."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import free_port
from tests.training.conftest import MakeTraining, Trained, Training

SPAWNS = """
    import os, queue, sys, threading, time
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def fill(batches, most):
        for _ in range(most):
            batches.put(torch.randn(64, 256))

    def train(rank, how, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=2)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 8)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = queue.Queue(4)
        most = 30 if how == "ends" and rank == 1 else 1_000_000
        threading.Thread(target=fill, args=(batches, most), daemon=True).start()
        while True:
            batch = batches.get()
            if how == "late" and rank == 1:
                time.sleep(0.05)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    if __name__ == "__main__":
        mp.spawn(train, args=(sys.argv[1], sys.argv[2]), nprocs=2)
"""


def examined(script: Training) -> Trained:
    """By `ddoctor run -- python train.py`."""
    command = script.under("--no-prove")
    started = (sys.executable, *command[command.index("-m", 3) :])
    with script.started(*started) as process:
        return script.outcome(process)


@pytest.mark.ward
def test_a_queue_that_nothing_fills(training: MakeTraining) -> None:
    trained = examined(training(SPAWNS, "ends", str(free_port())))
    assert "the script starts 2 ranks itself" in trained.stderr
    assert trained.first["cause"] == "rank-stuck-outside-collective"
    assert trained.first["where"]["ranks"] == [1]
    assert "train.py:23 in train (`batch = batches.get()`)" in trained.first["because"]
    assert "what filled it has ended" in trained.first["because"]
    assert trained.exit_code == 1
    assert trained.left == []


@pytest.mark.ward
def test_a_late_rank(training: MakeTraining) -> None:
    trained = examined(training(SPAWNS, "late", str(free_port())))
    assert trained.first["cause"] == "straggler-rank"
    assert trained.first["where"]["ranks"] == [1]


@pytest.mark.ward
def test_sound_ranks(training: MakeTraining) -> None:
    trained = examined(training(SPAWNS, "sound", str(free_port())))
    assert trained.alarms == []
    assert trained.exit_code == 0
    assert trained.left == []
