"""One rank holds the others up: which, and where in its step."""

from __future__ import annotations

import pytest

from tests.training.conftest import MakeTraining

# About 20 ms a step; the delay is asked for by the name of the place.
TRAIN = """
    import sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    where, milliseconds = sys.argv[1], float(sys.argv[2])
    dist.init_process_group("gloo")
    seconds = milliseconds / 1000 * dist.get_rank()  # of rank 1 alone

    class Delay(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)
        @staticmethod
        def backward(ctx, gradient):
            time.sleep(seconds)
            return gradient

    class Rows(Dataset):
        def __len__(self):
            return 32 * 2000
        def __getitem__(self, index):
            if where == "loader" and index % 32 == 0:
                time.sleep(seconds)
            return torch.randn(256)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(256, 1024), nn.Linear(1024, 256)
        def forward(self, x):
            if where == "forward":
                time.sleep(seconds)
            x = self.first(x).relu()
            if where == "backward":
                x = Delay.apply(x)
            return self.last(x)

    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Rows(), 32):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("where", "cause"),
    [
        ("forward", "straggler-rank"),
        ("backward", "straggler-rank"),
        ("loader", "dataloader-bottleneck"),
    ],
)
@pytest.mark.ward
def test_the_late_rank_is_named(training: MakeTraining, where: str, cause: str) -> None:
    trained = training(TRAIN, where, "60").recorded("--no-prove", "--steps=30")
    assert trained.exit_code == 1, trained.stderr
    assert trained.first["cause"] == cause
    assert trained.first["where"]["ranks"] == [1]
    assert trained.left == []


@pytest.mark.ward
def test_nobody_is_late(training: MakeTraining) -> None:
    trained = training(TRAIN, "nowhere", "60").recorded("--no-prove", "--steps=30")
    assert trained.alarms == []
    assert trained.exit_code == 0, trained.stderr
