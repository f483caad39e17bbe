"""A loader that needs three workers: the advice, the gain, and no finding with three workers."""

from __future__ import annotations

import pytest

from ddoctor.evidence.loading import LoaderCurve
from ddoctor.evidence.training import Trials
from tests.training.conftest import MakeTraining

# Its items wait for a storage and need no CPU, so workers help on any machine: a step is 60 ms, and
# a batch takes a worker 150 ms.
TRAIN = """
    import sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    class Stored(Dataset):
        def __len__(self):
            return 64000
        def __getitem__(self, index):
            time.sleep(0.150 / 16)
            return torch.full((64,), float(index))

    class Busy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)
        def forward(self, x):
            time.sleep(0.060)
            return self.layer(x)

    if __name__ == "__main__":
        dist.init_process_group("gloo")
        model = DistributedDataParallel(Busy())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        data = Stored()
        loader = DataLoader(
            data, 16, sampler=DistributedSampler(data), num_workers=int(sys.argv[1])
        )
        for batch in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.ward
def test_the_advice_and_its_proof(training: MakeTraining) -> None:
    trained = training(TRAIN, "1").recorded("--prove", "--steps=30")
    assert trained.first["cause"] == "dataloader-bottleneck"
    fix = trained.first["fixes"][0]
    name, _, workers = fix["settings"][0].partition("=")
    assert name == "loader.num_workers"
    assert int(workers) == pytest.approx(3, abs=1)
    (curve,) = trained.evidence.all(LoaderCurve)
    assert len(curve.points) >= 2
    (trials,) = trained.evidence.all(Trials)
    trial = trials.trials[0]
    assert trial.change == tuple(fix["settings"])
    before = min(turn.seconds for turn in trial.without if turn.seconds)
    after = max(turn.seconds for turn in trial.with_it if turn.seconds)
    assert before > 1.3 * after
    assert fix["verified"]


@pytest.mark.ward
def test_with_that_many_nothing_is_told(training: MakeTraining) -> None:
    trained = training(TRAIN, "3").recorded("--no-prove", "--steps=30")
    assert trained.told["verdict"] == "healthy", trained.told["findings"]
    assert trained.exit_code == 0
