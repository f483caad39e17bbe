"""Models in evaluation mode that a training step calls with gradients."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

LOOP = """
import copy
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

student = DDP(Net())
{made}
optimizer = torch.optim.AdamW({trained}, lr=1e-3)

def evaluate(model):
    model.eval()
    with torch.no_grad():
        return sum(F.mse_loss(model(x), y) for x, y in held_out)

def learn(teacher, x, y):
    own = student(x)
    {called}
    {between}
    return F.kl_div(own, {target}) + F.cross_entropy(own, y)

for epoch in range(3):
    for x, y in loader:
        loss = learn(teacher, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    evaluate(student)
"""
USUAL = {
    "made": "teacher = Net()\nteacher.eval()",
    "trained": "student.parameters()",
    "called": "guide = teacher(x)",
    "between": "pass",
    "target": "guide",
}
OF_A_MODULE = """
import lightning
import torch
from torch import nn

class Distiller(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = Net(), Net()
        {mode}

    def training_step(self, batch, number):
        own, guide = self.student(batch), None
        guide = self.teacher(batch)
        loss = nn.functional.mse_loss(own, guide)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW({trained}, lr=1e-3)
"""


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"made": "teacher = Net().to(device).eval()"},
        {"made": "teacher = copy.deepcopy(student)\nteacher.eval()"},
        {"trained": "student.module.parameters()"},
    ],
)
def test_a_function_of_the_loop(script: Read, changed: dict[str, str]) -> None:
    (one,) = script(LOOP.format(**USUAL | changed)).teachers
    assert one.at.text == "guide = teacher(x)"
    assert one.mode.text.endswith("eval()")


@pytest.mark.parametrize(
    "changed",
    [
        {"made": "teacher = Net()"},
        {"made": "teacher = Net()\nteacher.eval()\nteacher.requires_grad_(False)"},
        {"made": "teacher = Net()\nteacher.eval()\nfreeze(teacher)"},
        {"made": "teacher = Net()\nteacher.eval()\nfor p in nets: p.requires_grad = False"},
        {"made": "teacher = Net()\nteacher.eval()\nteacher.train()"},
        {"trained": "[*student.parameters(), *teacher.parameters()]"},
        {"trained": "groups"},
        {"called": "with torch.no_grad():\n        guide = teacher(x)"},
        {"called": "guide = teacher(x).detach()"},
        {"target": "guide.detach()"},
        {"between": "guide = guide.detach()"},
        {"target": "own"},
        {"made": "teacher = Net()\nteacher.eval()\nstudent = DDP(Both(student, teacher))"},
    ],
)
def test_quiet(script: Read, changed: dict[str, str]) -> None:
    assert script(LOOP.format(**USUAL | changed)).teachers == ()


def test_quiet_about_the_model_of_an_evaluation(script: Read) -> None:
    source = LOOP.format(**USUAL).replace("teacher.eval()", "pass")
    assert script(source.replace("(student)\n", "(teacher)\n")).teachers == ()


@pytest.mark.parametrize(
    ("mode", "trained", "told"),
    [
        ("self.teacher.eval()", "self.student.parameters()", True),
        ("self.teacher.eval().requires_grad_(False)", "self.student.parameters()", False),
        ("self.teacher.eval()", "self.parameters()", False),
        ("pass", "self.student.parameters()", False),
    ],
)
def test_a_module_of_lightning(script: Read, mode: str, trained: str, *, told: bool) -> None:
    found = script(OF_A_MODULE.format(mode=mode, trained=trained)).teachers
    assert [one.at.text for one in found] == (["guide = self.teacher(batch)"] if told else [])
