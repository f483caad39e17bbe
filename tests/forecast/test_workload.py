"""A plan of what a function of the user's own makes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from ddoctor.errors import DoctorError
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model.blueprint import from_factory
from ddoctor.forecast.model.forecasting import Forecast
from ddoctor.forecast.model.sharding import Sharding
from tests.forecast import truth
from tests.forecast.on_cpu import footprint

NAME = "trained_by_me:workload"
MODULE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.back(self.wide(x).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def workload():
    model = Net()
    return model, torch.optim.AdamW(model.parameters()), loss


def loss(model, samples):
    return model(torch.randn(samples, 256)).square().mean()


def texts():
    model = Net()
    return model, torch.optim.AdamW(model.parameters()), loss_of_texts


def loss_of_texts(model, samples, tokens):
    return model(torch.randn(samples, tokens, 256)).square().mean()


def nothing():
    return None
"""
AdamW = partial(torch.optim.AdamW, lr=1e-4)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trained_by_me.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("sharding", [None, Sharding(ranks=2)], ids=["whole", "sharded"])
def test_it_is_forecast_as_it_is_trained(sharding: Sharding | None) -> None:
    blueprint = from_factory(NAME)
    batch = partial(blueprint.batch, 512, 1)
    told = footprint(blueprint.build, batch, AdamW, sharding=sharding)
    real = truth.peak(blueprint.build, batch, AdamW, sharding=sharding)
    assert told.total == pytest.approx(real, rel=0.005)


def test_what_is_read_off_it() -> None:
    found = from_factory(NAME).read("fp32", "adamw")
    assert (found.layers, found.blocks) == (4, ("Block",))
    forecast = Forecast(
        blueprint=from_factory(NAME), precision="fp32", optimizer="adamw", samples=8, length=1
    )
    assert forecast.sequence is None
    assert forecast.parts(ForecastRow(strategy="fsdp", gpus=4)).parameters * 4 == pytest.approx(
        4 * found.parameters, rel=0.01
    )


def test_a_loss_that_is_told_how_long_samples_are() -> None:
    blueprint = from_factory("trained_by_me:texts", 64)
    assert blueprint.length(64) == 64
    batch = partial(blueprint.batch, 8, 64)
    told = footprint(blueprint.build, batch, AdamW)
    assert told.total == pytest.approx(truth.peak(blueprint.build, batch, AdamW), rel=0.005)
    with pytest.raises(DoctorError, match="pass --sequence N"):
        from_factory("trained_by_me:texts").read("fp32", "adamw")


def test_what_is_no_workload() -> None:
    with pytest.raises(DoctorError, match="has no function"):
        from_factory("trained_by_me:absent")
    with pytest.raises(DoctorError, match="return a model, its optimizer"):
        from_factory("trained_by_me:nothing").read("fp32", "adamw")
