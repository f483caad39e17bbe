"""Gradients that a script adds up over the ranks itself."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = {optimizer}(model.parameters(), lr={rate})
print("ranks:", world)
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch).sum(){loss}
    loss.backward()
    for p in model.parameters():
        {average}
    optimizer.step()
"""
SUM = "dist.all_reduce(p.grad)"


def source(
    average: str = SUM, optimizer: str = "torch.optim.SGD", rate: str = "0.1", loss: str = ""
) -> str:
    return SCRIPT.format(average=average, optimizer=optimizer, rate=rate, loss=loss)


@pytest.mark.parametrize("average", [SUM, "dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM)"])
def test_added_up(script: Read, average: str) -> None:
    line = script(source(average)).summed_gradients
    assert line is not None
    assert line.text == average


@pytest.mark.parametrize(
    "text",
    [
        source(f"{SUM}; p.grad /= world"),
        source(f"{SUM}; p.grad.div_(world)"),
        source("p.grad.mul_(1 / world); dist.all_reduce(p.grad)"),
        source("dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)"),
        source("dist.all_reduce(p.data)"),
        source("pass"),
        source(loss=" / world"),
        source(rate="0.1 / world"),
        # By another variable.
        source(loss="; many = world; loss = loss * (1.0 / many)"),
        source(optimizer="torch.optim.AdamW"),
    ],
)
def test_quiet(script: Read, text: str) -> None:
    assert script(text).summed_gradients is None
