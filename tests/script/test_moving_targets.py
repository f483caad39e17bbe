"""Moving averages of a model that a training step calls with gradients."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import copy
import torch
from torch import nn
from torch.nn.functional import mse_loss

class Learner:
    def __init__(self):
        self.online = nn.Sequential(nn.Linear(8, 8))
        self.target = copy.deepcopy(self.online){frozen}

    def loss(self, views):
        {passes}
        return {loss}

    {decorator}
    def follow(self):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            {follows}

def main():
    learner = Learner()
    optimizer = torch.optim.AdamW(learner.online.parameters())
    for views in loader:
        loss = learner.loss(views)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        learner.follow()

main()
"""
USUAL = {
    "frozen": "",
    "passes": "p, z = self.online(views), None\n        z = self.target(views)",
    "loss": "mse_loss(p, z)",
    "decorator": "@torch.no_grad()",
    "follows": "t.lerp_(o, 0.01)",
}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"follows": "t.data.mul_(0.99).add_(o.data, alpha=0.01)"},
        {"follows": "t.data.copy_(0.99 * t.data + 0.01 * o.data)"},
        {
            "passes": "a, b = self.online(views).chunk(2)\n"
            "        c, d = self.target(views).chunk(2)",
            "loss": "self.apart(a, d) + self.apart(b, c)",
        },
    ],
)
def test_a_target_that_is_called_with_gradients(script: Read, other: dict[str, str]) -> None:
    (one,) = script(SCRIPT.format(**{**USUAL, **other})).moving_targets
    assert "self.target(views)" in one.at.text
    assert one.averaged.text.startswith("t.")


@pytest.mark.parametrize(
    "other",
    [
        {"passes": "p = self.online(views)\n        with torch.no_grad(): z = self.target(views)"},
        {"passes": "p = self.online(views)\n        z = self.target(views).detach()"},
        {"loss": "mse_loss(p, z.detach())"},
        {"frozen": ".requires_grad_(False)"},
        {"frozen": "\n        for p in self.target.parameters(): p.requires_grad = False"},
        # What is called is trained; what follows is only saved.
        {"passes": "p = self.online(views)\n        z = self.online(views)"},
        # Nothing learns from it.
        {"loss": "mse_loss(p, views)"},
        # Another loop over parameters: no average.
        {"follows": "print((t - o).norm())"},
    ],
)
def test_quiet(script: Read, other: dict[str, str]) -> None:
    assert script(SCRIPT.format(**{**USUAL, **other})).moving_targets == ()


def test_quiet_in_an_evaluation(script: Read) -> None:
    text = SCRIPT.format(**USUAL).replace("loss = learner.loss(views)", "loss = net(views).sum()")
    assert script(f"{text}\nprint(Learner().loss(held_out))").moving_targets == ()
