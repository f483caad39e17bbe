"""What optimizers keep, and what their step takes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import transformers
from torch import nn
from transformers.training_args import OptimizerNames

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.optimizers import made
from ddoctor.forecast.model.step import footprint
from ddoctor.forecast.optimizers import OPTIMIZERS, each, named
from tests.forecast import truth
from tests.forecast.model_set import SET
from tests.forecast.on_cpu import footprint as on_cpu

NUMBERS = 64 * 1024
TORCH = [name for name, kind in OPTIMIZERS.items() if kind.torch]


def states(name: str, dtype: torch.dtype, numbers: int = NUMBERS) -> int:
    """Bytes that it keeps of one parameter with so many numbers."""
    parameter = nn.Parameter(torch.zeros(numbers // 64, 64, dtype=dtype))
    optimizer = made(name, [parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    found = optimizer.state[parameter].values()
    return sum(one.nbytes for one in found if isinstance(one, torch.Tensor) and one.numel() > 1)


@pytest.mark.parametrize(
    ("name", "dtype", "bytes_each"),
    [
        ("adamw", torch.float32, 8),
        ("adamw", torch.bfloat16, 4),
        ("adamw-fp32", torch.bfloat16, 8),
        ("sgd", torch.float32, 4),
        ("lion_32bit", torch.bfloat16, 4),
        ("ademamix_32bit", torch.float32, 12),
        ("schedule_free_sgd", torch.float32, 4),
        ("adamw_torch_fused", torch.bfloat16, 4),
        # Squares of sides 1024 and 64, twice, beside Adam's states.
        ("soap", torch.float32, 8 + 2 * 4 * (1024**2 + 64**2) / NUMBERS),
        ("shampoo", torch.float32, 2 * 4 * (1024**2 + 64**2) / NUMBERS),
    ],
)
def test_whole_states(name: str, dtype: torch.dtype, bytes_each: float) -> None:
    assert states(name, dtype) == bytes_each * NUMBERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TORCH)
def test_the_table_says_what_torch_keeps(name: str, dtype: torch.dtype) -> None:
    kept = OPTIMIZERS[name].keeps((NUMBERS // 64, 64), dtype.itemsize)
    assert states(name, dtype) == sum(kept)


@pytest.mark.parametrize(("name", "bytes_each"), [("adamw", 4), ("adamw-fp32", 0), ("sgd", 0)])
def test_what_a_step_over_all_parameters_makes(name: str, bytes_each: int) -> None:
    """As on CUDA, where AdamW has a list of all its denominators at once (torch/optim/adam.py,
    _multi_tensor_adam)."""
    case = SET["dense"]
    told = footprint(case.build, case.batch, partial(made, name))
    last = next(one for one in told.peaks if one.phase == "optimizer")
    update = last.parts["Optstate"] - told.states
    parameters = sum(one.numel() for one in case.build().parameters())
    assert update == pytest.approx(bytes_each * parameters, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [name if name == "adafactor" else pytest.param(name, marks=pytest.mark.ward) for name in TORCH],
)
def test_a_step_that_reads_values_keeps_its_activations(name: str) -> None:
    """Adafactor, NAdam and ASGD read norms and schedules of the GPU, which fake tensors lack."""
    case = SET["dense"]
    told = on_cpu(case.build, case.batch, partial(made, name))
    assert told.total == pytest.approx(
        truth.peak(case.build, case.batch, partial(made, name)), rel=0.03
    )


@pytest.mark.ward
def test_adafactor_of_transformers() -> None:
    """As its Trainer makes it (transformers/trainer_optimizer.py)."""
    case = SET["dense"]
    factory = partial(transformers.Adafactor, lr=1e-3, scale_parameter=False, relative_step=False)
    told = on_cpu(case.build, case.batch, factory)
    assert told.total == pytest.approx(truth.peak(case.build, case.batch, factory), rel=0.03)


def test_states_of_8_bits() -> None:
    # Two bytes, and two scales for each block of 256.
    assert states("adamw-8bit", torch.bfloat16) == 2 * NUMBERS + 2 * 4 * NUMBERS // 256
    assert states("adamw-8bit", torch.bfloat16, 1024) == 8 * 1024


def test_states_of_4_bits() -> None:
    assert states("adamw-4bit", torch.bfloat16) == NUMBERS + 2 * 4 * NUMBERS // 128
    # No whole blocks: as large as the weights.
    assert states("adamw-4bit", torch.bfloat16, 64 * 65) == 2 * 2 * 64 * 65


def test_pages_move_to_the_host() -> None:
    assert states("paged_adamw_32bit", torch.float32) == 8 * NUMBERS  # too small for a page
    assert states("paged_adamw_32bit", torch.float32, 2 * NUMBERS) == 0


def test_a_row_and_a_column() -> None:
    assert states("adafactor", torch.float32) == 4 * (64 + NUMBERS // 64)


def test_matrices_and_others_of_muon() -> None:
    matrix, vector = nn.Parameter(torch.zeros(64, 64)), nn.Parameter(torch.zeros(64))
    optimizer = made("muon", [matrix, vector])
    matrix.grad, vector.grad = torch.ones_like(matrix), torch.ones_like(vector)
    optimizer.step()
    assert set(optimizer.state[matrix]) == {"momentum_buffer"}
    assert {"exp_avg", "exp_avg_sq"} < set(optimizer.state[vector])


def test_every_name_of_a_trainer_exists() -> None:
    names = {one.value for one in OptimizerNames}
    assert {kind.argument for kind in OPTIMIZERS.values() if kind.argument} <= names


def test_usual_bytes_of_each_parameter() -> None:
    assert each("adamw", 2) == 4
    assert each("adamw_bnb_8bit", 2) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("name", "told"), [("adamw_8bits", "did you mean 'adamw_8bit'"), ("?", "adamw-8bit, sgd")]
)
def test_an_unknown_name(name: str, told: str) -> None:
    with pytest.raises(DoctorError, match=told):
        named(name)
