"""Layers that a script adds to a model inside DDP."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Stage(nn.Module):
    pass

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Stage(), Stage()])
        self.seen = []

    def grow(self, width):
        {grows}
        return self.stages[-1]

model = DDP(Net())
optimizer = torch.optim.Adam(model.parameters())
for step in range(1000):
    if step == 100:
        {adds}
    optimizer.zero_grad()
    model(batch()).sum().backward()
    optimizer.step()
"""
GROWS = "self.stages.append(Stage(width))"
ADDS = 'optimizer.add_param_group({"params": model.module.grow(4).parameters()})'


@pytest.mark.parametrize(
    ("grows", "adds"),
    [
        (GROWS, ADDS),
        ("self.stages.insert(0, nn.Linear(width, width))", ADDS),
        ("self.head = nn.Linear(width, 2)", ADDS),
        ("pass", "model.module.stages.append(Stage(8))"),
        ("stage = Stage(width)\n        self.stages.append(stage)", ADDS),
        ("pass", 'model.module.add_module("head", nn.Linear(8, 2))'),
    ],
)
def test_a_stage_that_a_model_gets_later(script: Read, grows: str, adds: str) -> None:
    (at,) = script(SCRIPT.format(grows=grows, adds=adds)).added_layers
    assert at.text == adds


@pytest.mark.parametrize(
    ("grows", "adds"),
    [
        (GROWS, "pass"),
        (GROWS, f"{ADDS}\n        model = DDP(model.module)"),
        ("self.seen.append(width)", ADDS),
        ("self.width = width", ADDS),
        ("pass", "model.module.seen.append(step)"),
        ("last = self.seen[-1]\n        self.seen.append(last)", ADDS),
        ("pass", "other.stages.append(Stage(8))"),
    ],
)
def test_quiet(script: Read, grows: str, adds: str) -> None:
    assert script(SCRIPT.format(grows=grows, adds=adds)).added_layers == ()
