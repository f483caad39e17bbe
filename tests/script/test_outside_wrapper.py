"""Parameters of a module that DDP does not know."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Proxies(nn.Module):
    def __init__(self, classes):
        super().__init__()
        {layer}

def reduce(one):
    {reduce}

net = DDP(nn.Linear(8, 8))
criterion = {criterion}
optimizer = torch.optim.Adam([
    {{"params": net.parameters()}},
    {{"params": criterion.parameters(), "lr": 0.01}},
])
for x, y in loader:
    optimizer.zero_grad()
    criterion(net(x), y).backward()
    optimizer.step()
"""
USUAL = {
    "layer": "self.weight = nn.Parameter(torch.randn(classes, 8))",
    "reduce": "dist.all_reduce(one)",
    "criterion": "Proxies(10)",
}


@pytest.mark.parametrize("layer", [USUAL["layer"], "self.head = nn.Linear(8, classes)"])
def test_outside_of_ddp(script: Read, layer: str) -> None:
    (one,) = script(SCRIPT.format(**USUAL | {"layer": layer})).outside_wrapper
    assert one.name == "criterion"
    assert one.at.text == "criterion = Proxies(10)"
    assert one.optimizer.text.startswith("optimizer = torch.optim.Adam(")


@pytest.mark.parametrize(
    "changed",
    [
        {"criterion": "DDP(Proxies(10))"},
        # It holds the wrapped model.
        {"criterion": "Proxies(net)"},
        {"criterion": "nn.CrossEntropyLoss()"},
        {"criterion": "library.Proxies(10)"},
        {"layer": "self.scale = 3.0"},
        {"reduce": "for p in one.parameters(): dist.all_reduce(p.grad)"},
    ],
)
def test_quiet(script: Read, changed: dict[str, str]) -> None:
    assert script(SCRIPT.format(**USUAL | changed)).outside_wrapper == ()


def test_quiet_without_ddp(script: Read) -> None:
    source = SCRIPT.format(**USUAL).replace("DDP(nn.Linear(8, 8))", "nn.Linear(8, 8)")
    assert script(source).outside_wrapper == ()
