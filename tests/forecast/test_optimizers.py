"""What optimizers keep, and what their step takes."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from ddoctor.forecast.model.optimizers import FACTORIES
from ddoctor.forecast.model.step import footprint
from ddoctor.forecast.options import Optimizer
from tests.forecast.model_set import SET

NUMBERS = 64 * 1024


def states(name: Optimizer, dtype: torch.dtype, numbers: int = NUMBERS) -> int:
    """Bytes that it keeps of one parameter with so many numbers."""
    parameter = nn.Parameter(torch.zeros(numbers // 64, 64, dtype=dtype))
    optimizer = FACTORIES[name]([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return sum(one.nbytes for one in optimizer.state[parameter].values() if one.numel() > 1)


@pytest.mark.parametrize(
    ("name", "dtype", "bytes_each"),
    [
        ("adamw", torch.float32, 8),
        ("adamw", torch.bfloat16, 4),
        ("adamw-fp32", torch.bfloat16, 8),
        ("sgd", torch.float32, 4),
    ],
)
def test_whole_states(name: Optimizer, dtype: torch.dtype, bytes_each: int) -> None:
    assert states(name, dtype) == bytes_each * NUMBERS


@pytest.mark.parametrize(("name", "bytes_each"), [("adamw", 4), ("adamw-fp32", 0), ("sgd", 0)])
def test_what_a_step_over_all_parameters_makes(name: Optimizer, bytes_each: int) -> None:
    """As on CUDA, where AdamW has a list of all its denominators at once (torch/optim/adam.py,
    _multi_tensor_adam)."""
    case = SET["dense"]
    told = footprint(case.build, case.batch, FACTORIES[name])
    last = next(one for one in told.peaks if one.phase == "optimizer")
    made = last.parts["Optstate"] - told.states
    parameters = sum(one.numel() for one in case.build().parameters())
    assert made == pytest.approx(bytes_each * parameters, rel=0.01)


def test_states_of_8_bits() -> None:
    # Two bytes, and two scales for each block of 256.
    assert states("adamw-8bit", torch.bfloat16) == 2 * NUMBERS + 2 * 4 * NUMBERS // 256
    assert states("adamw-8bit", torch.bfloat16, 1024) == 8 * 1024


def test_a_row_and_a_column() -> None:
    assert states("adafactor", torch.float32) == 4 * (64 + NUMBERS // 64)


def test_every_name_has_one() -> None:
    for name in get_args(Optimizer):
        assert states(name, torch.float32) < 9 * NUMBERS
