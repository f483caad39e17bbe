"""Layers that a model gets after its optimizer was made."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import SET_UP, STEP, ddp

ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
HEAD = "model.module.head = torch.nn.Linear(8, 20)\n"
STAGES = """
import torch
from torch import nn

class Head(nn.Module):
    pass

class Stages:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters())
    def second(self):
        {line}
    def fit(self):
        self.train(1)
        self.second()
        self.train(2)

Stages().fit()
"""


def test_after_the_optimizer(script: Read) -> None:
    (one,) = script(ddp(set_up=SET_UP + ADAM + HEAD)).replaced_layers
    assert one.at.text == HEAD.strip()
    assert one.optimizer.text == ADAM.strip()


@pytest.mark.parametrize("line", ["self.net.head = nn.Linear(8, 20)", "self.net.head = Head()"])
def test_in_a_later_stage(script: Read, line: str) -> None:
    (one,) = script(STAGES.format(line=line)).replaced_layers
    assert one.at.text == line


@pytest.mark.parametrize(
    "line",
    [
        "self.net.head = Head(); self.optimizer = torch.optim.Adam(self.net.parameters())",
        "self.net.head = Head(); self.optimizer.add_param_group({'params': []})",
        "self.net.width = 20",
        "self.teacher.head = nn.Linear(8, 20)",
        "self.net.loss = torch.tensor(0.0)",
    ],
)
def test_quiet_in_a_later_stage(script: Read, line: str) -> None:
    assert script(STAGES.format(line=line)).replaced_layers == ()


@pytest.mark.parametrize("set_up", [SET_UP + HEAD + ADAM, SET_UP + ADAM, SET_UP + HEAD])
def test_quiet_before_the_optimizer(script: Read, set_up: str) -> None:
    assert script(ddp(set_up=set_up, step=STEP)).replaced_layers == ()
