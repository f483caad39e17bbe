"""Ranks that leave a loop at different times: what the report of the hang names."""

from __future__ import annotations

import pytest

from ddoctor.evidence.training import TrainingRun
from tests.training.conftest import MakeTraining

UNEVEN = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, IterableDataset

    how = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    class Shard(IterableDataset):
        def __iter__(self):
            for number in range(25 if how != "early" and rank == 1 else 30):
                yield torch.randn(64), number

    def one_epoch(loader):
        for x, number in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if how == "early" and loss * 0 + rank * number > 24:
                break

    loader = DataLoader(Shard(), batch_size=1)
    for epoch in range(4):
        if how == "joined":
            with Join([model]):
                one_epoch(loader)
        else:
            one_epoch(loader)
            dist.barrier()
"""


@pytest.mark.ward
def test_a_stream_with_fewer_batches(training: MakeTraining) -> None:
    trained = training(UNEVEN, "uneven").recorded("--no-prove", "--steps=10000")
    assert (trained.first["cause"], trained.first["confidence"]) == (
        "uneven-inputs-per-rank",
        "certain",
    )
    assert "25 batches on rank 1 and at least 26 on rank 0" in trained.first["because"]
    assert "inside `for x, number in loader:` (train.py:22)" in trained.first["because"]
    (run,) = trained.evidence.all(TrainingRun)
    assert [one.within[-1].text for one in run.ranks] == [
        "for x, number in loader:",
        "for epoch in range(4):",
    ]
    assert run.ranks[1].stack[0].text


@pytest.mark.ward
def test_a_rank_that_stops_early_has_as_many_batches(training: MakeTraining) -> None:
    trained = training(UNEVEN, "early").recorded("--no-prove", "--steps=10000")
    assert trained.first["cause"] == "rank-dependent-control-flow"
    assert "break" in trained.first["fixes"][0]["paste"]


@pytest.mark.ward
def test_ranks_that_join_are_stopped_without_a_finding(training: MakeTraining) -> None:
    trained = training(UNEVEN, "joined").recorded("--no-prove", "--steps=40")
    assert trained.alarms == []
    (run,) = trained.evidence.all(TrainingRun)
    assert {one.outcome for one in run.ranks} <= {"stopped", "finished"}
