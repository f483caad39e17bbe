"""Models that learn from what another one made, through its graph."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

GAN = """
import torch
from torch import nn

class Trainer:
    def __init__(self):
        self.G, self.D = Generator(), Critic()
        self.opt_g = torch.optim.Adam(self.G.parameters())
        self.opt_d = torch.optim.Adam(self.D.parameters())

    def critic(self, real):
        {make}
        loss = {loss}
        self.opt_d.zero_grad()
        loss.backward()
        {taken}

    def generator(self):
        {zero}
        (-self.D(self.G(noise())).mean()).backward()
        self.opt_g.step()

    def fit(self):
        for real in loader:
            self.critic(real)
            self.generator()

Trainer().fit()
"""
USUAL = {
    "make": "fake = self.G(noise())",
    "loss": "self.D(fake).mean() - self.D(real).mean()",
    "taken": "self.opt_d.step()",
    "zero": "self.opt_g.zero_grad()",
}
FREEZES_ANY = "for p in params: p.requires_grad_(True)\n        self.opt_g.zero_grad()"


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"loss": "self.D(torch.cat([real, fake])).mean()"},
        {"zero": "self.D.requires_grad_(False)\n        self.opt_g.zero_grad()"},
    ],
    ids=["alone", "together", "with a critic that is frozen for the generator"],
)
def test_a_critic_that_learns_through_the_generator(script: Read, other: dict[str, str]) -> None:
    (one,) = script(GAN.format(**{**USUAL, **other})).discarded_passes
    assert one.made.text == "fake = self.G(noise())"
    assert "self.D(" in one.at.text


@pytest.mark.parametrize(
    "other",
    [
        {"make": "fake = self.G(noise()).detach()"},
        {"make": "with torch.no_grad():\n            fake = self.G(noise())"},
        {"make": "fake = self.G(noise())\n        fake = fake.detach()"},
        {"loss": "self.D(fake.detach()).mean() - self.D(real).mean()"},
        {"loss": "self.D(real).mean()"},
        # Both learn from it.
        {"taken": "self.opt_d.step()\n        self.opt_g.step()"},
        {"zero": "pass"},
        # The generator is frozen at times.
        {"make": "self.G.requires_grad_(False)\n        fake = self.G(noise())"},
        {"make": "freeze(self.G)\n        fake = self.G(noise())", "zero": FREEZES_ANY},
        {"loss": "self.teacher(fake).mean()"},
    ],
)
def test_quiet(script: Read, other: dict[str, str]) -> None:
    assert script(GAN.format(**{**USUAL, **other})).discarded_passes == ()
