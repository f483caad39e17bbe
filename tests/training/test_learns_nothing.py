"""Runs that go through all of their steps and do not learn: what the report names, and twins."""

from __future__ import annotations

import pytest

from tests.training.conftest import MakeTraining

SCRIPT = """
    import copy
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    cause = sys.argv[1]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 10))
    model = DistributedDataParallel(copy.deepcopy(body))
    trained = body if cause == "optimizer-without-gradients" else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    inputs = torch.randn(8192, 64)
    data = TensorDataset(inputs, inputs[:, :10].argmax(1))
    sampler = DistributedSampler(data)
    step = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=64, sampler=sampler):
            loss = nn.functional.cross_entropy(model(x), y)
            if cause == "weights-not-finite" and step == 20:
                loss = loss * float("inf")
            if cause != "gradients-never-zeroed":
                model.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    dist.destroy_process_group()
"""
CAUSES = ("optimizer-without-gradients", "weights-not-finite", "gradients-never-zeroed")


@pytest.mark.ward
@pytest.mark.parametrize("cause", CAUSES)
def test_it_is_named_first(training: MakeTraining, cause: str) -> None:
    trained = training(SCRIPT, cause).recorded("--no-prove")
    assert trained.first["cause"] == cause
    assert trained.first["severity"] == "error"


def test_a_run_that_learns(training: MakeTraining) -> None:
    trained = training(SCRIPT, "none").recorded("--no-prove")
    assert not {*CAUSES} & {one["cause"] for one in trained.told["findings"]}


@pytest.mark.ward
def test_a_rank_that_never_steps_ends_with_the_others(training: MakeTraining) -> None:
    """It loses the connection to the one that stops, as asked: that is no failure."""
    script = SCRIPT.replace(
        "        optimizer.step()", "        if rank == 0:\n                optimizer.step()"
    )
    script = script.replace("    step = 0\n", "    step, rank = 0, dist.get_rank()\n")
    trained = training(script, "none").recorded("--no-prove", "--steps=30")
    assert [one["cause"] for one in trained.told["findings"]] == ["replicas-diverged"]


EXPERTS = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 8)
            self.gate, self.expert = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            x = self.first(x).relu()
            share = self.gate(x).sigmoid()
            sent = torch.empty_like(x)
            dist.all_to_all_single(sent, x.detach().contiguous())
            return self.last(x + share * self.expert(x) + 0.01 * sent)

    dist.init_process_group("gloo")
    rank, left = dist.get_rank(), tuple(sys.argv[1:])
    torch.manual_seed(0)
    model = Experts()
    torch.manual_seed(1 + rank)
    model.expert.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(400):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :8].argmax(1)).backward()
        for name, one in model.named_parameters():
            if not name.startswith(left):
                dist.all_reduce(one.grad, dist.ReduceOp.SUM)
                one.grad /= 2
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.ward
@pytest.mark.parametrize(
    ("left", "told"), [(("expert",), []), (("expert", "gate"), ["replicas-diverged"])]
)
def test_gradients_that_a_script_averages(
    training: MakeTraining, left: tuple[str, ...], told: list[str]
) -> None:
    trained = training(EXPERTS, *left).recorded("--no-prove", "--steps=60")
    causes = [one["cause"] for one in trained.told["findings"]]
    assert [one for one in causes if one == "replicas-diverged"] == told
