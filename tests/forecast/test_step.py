"""The forecast of a step against what the allocator really gave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from ddoctor.forecast.model.step import Footprint
from tests.forecast import truth
from tests.forecast.model_set import LENGTH, SAMPLES, SET, VOCABULARY
from tests.forecast.on_cpu import footprint

WORST = 0.03
SAMPLED = ("dense",)
AdamW = partial(torch.optim.AdamW, lr=1e-4)
SGD = partial(torch.optim.SGD, lr=1e-2)


def off(
    name: str,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    autocast: torch.dtype | None = None,
) -> float:
    """Share of the truth by which the forecast is above it."""
    case = SET[name]
    told = footprint(case.build, case.batch, optimizer, autocast=autocast)
    return told.total / truth.peak(case.build, case.batch, optimizer, autocast) - 1


@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLED else pytest.param(name, marks=pytest.mark.ward) for name in SET],
)
def test_the_whole_set(name: str) -> None:
    assert abs(off(name, AdamW)) <= WORST


@pytest.mark.ward
@pytest.mark.parametrize("name", SET)
def test_another_optimizer(name: str) -> None:
    assert abs(off(name, SGD)) <= WORST


@pytest.mark.ward
@pytest.mark.parametrize(
    "name",
    [
        name if name == "dense" else pytest.param(name, marks=truth.needs_known_bfloat16)
        for name in SET
    ],
)
def test_computing_in_bfloat16(name: str) -> None:
    assert abs(off(name, AdamW, torch.bfloat16)) <= WORST


def of(name: str) -> Footprint:
    return footprint(SET[name].build, SET[name].batch, AdamW)


def sizes(name: str) -> tuple[int, int]:
    """Numbers of trained and of frozen parameters."""
    found = list(SET[name].build().parameters())
    trained, frozen = (
        sum(one.numel() for one in found if one.requires_grad is wanted) for wanted in (True, False)
    )
    return trained, frozen


def test_what_lies_there_and_when() -> None:
    told, parameters = of("dense"), sum(sizes("dense"))
    assert told.peak.parts["Parameter"] == pytest.approx(4 * parameters, rel=0.01)
    assert told.peak.parts["Optstate"] == pytest.approx(8 * parameters, rel=0.01)
    # The gradients of the logits are the largest there are.
    assert told.peak.phase == "backward"


@pytest.mark.parametrize(("dtype", "bytes_each"), [(None, 16), (torch.bfloat16, 14)])
def test_logits_with_what_the_loss_makes_of_them(
    dtype: torch.dtype | None, bytes_each: int
) -> None:
    """In floats but for themselves, where layers compute in halves."""
    case = SET["dense"]
    told = footprint(case.build, case.batch, AdamW, autocast=dtype).peak
    assert sum(told.logits.values()) == bytes_each * SAMPLES * LENGTH * VOCABULARY
    assert all(size <= told.parts[name] for name, size in told.logits.items())


def test_no_logits_where_the_model_returns_none() -> None:
    assert of("u-net").peak.logits == {}


def test_frozen_parameters_have_no_gradients_and_no_states() -> None:
    told, (trainable, frozen) = of("adapters"), sizes("adapters")
    assert trainable < 0.01 * frozen
    assert told.peak.parts["Optstate"] == pytest.approx(8 * trainable, rel=0.01)
