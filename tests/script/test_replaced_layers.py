"""Layers that a model gets after its optimizer was made."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import SET_UP, STEP, ddp

ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
ADAPTERS = """
class Adapter(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.down = inner, torch.nn.Linear(8, 2)

def adapt(module):
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            {line}
        else:
            adapt(child)

"""
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


def adapted(line: str, set_up: str) -> str:
    """A script that goes through its model with this line, where ``adapt`` is called."""
    return ddp(head=ADAPTERS.format(line=line), set_up=set_up)


@pytest.mark.parametrize(
    "line",
    [
        "setattr(module, name, Adapter(child))",
        "setattr(module, name, torch.nn.Linear(8, 8))",
        "new = Adapter(child); setattr(module, name, new)",
    ],
)
@pytest.mark.parametrize("call", ["adapt(model)\n", "adapt(model.module)\n"])
def test_by_a_function_that_goes_through_the_model(script: Read, line: str, call: str) -> None:
    (one,) = script(adapted(line, SET_UP + ADAM + call)).replaced_layers
    assert one.at.text == call.strip()


def test_by_peft(script: Read) -> None:
    line = "model = get_peft_model(model, config)\n"
    (one,) = script(ddp(set_up=SET_UP + ADAM + line)).replaced_layers
    assert one.at.text == line.strip()


@pytest.mark.parametrize(
    ("line", "set_up"),
    [
        ("setattr(module, name, Adapter(child))", SET_UP + "adapt(model)\n" + ADAM),
        ("setattr(module, name, Adapter(child))", SET_UP + ADAM + "adapt(teacher)\n"),
        ("setattr(module, name, Adapter(child))", SET_UP + ADAM),
        ("setattr(module, name, torch.nn.Identity())", SET_UP + ADAM + "adapt(model)\n"),
        ("setattr(module, name, torch.nn.Dropout(0.1))", SET_UP + ADAM + "adapt(model)\n"),
        ("setattr(module, 'seen', len(name))", SET_UP + ADAM + "adapt(model)\n"),
    ],
)
def test_quiet_about_a_function_that_goes_through_the_model(
    script: Read, line: str, set_up: str
) -> None:
    assert script(adapted(line, set_up)).replaced_layers == ()
