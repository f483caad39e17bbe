"""What single convolutions have for themselves, against the allocator's own events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.forecast import truth
from tests.forecast.convolutions import BACKWARD, FORWARD, own

# oneDNN takes another way on another CPU.
pytestmark = pytest.mark.ward

# Of all that the convolution reads, returns and has for itself: what a thread has for a few rows
# is left out.
WORST = 0.08
SAMPLES, CHANNELS = 4, 64
ALL = [True, True, False]


@dataclass(frozen=True)
class Kind:
    """A convolution of 64 channels to 64."""

    kernel: int
    stride: int = 1
    groups: int = 1
    transposed: bool = False
    sides: tuple[int, ...] = (32, 32)

    def tensors(self, dtype: torch.dtype, form: torch.memory_format) -> tuple[Tensor, Tensor]:
        kernel = [self.kernel] * len(self.sides)
        inputs = torch.ones(SAMPLES, CHANNELS, *self.sides, dtype=dtype)
        weights = torch.ones(CHANNELS, CHANNELS // self.groups, *kernel, dtype=dtype)
        return inputs.to(memory_format=form), weights.to(memory_format=form)

    @property
    def how(self) -> tuple[Any, ...]:
        """As the operators take it."""
        each = len(self.sides)
        padding = [(self.kernel - self.stride + 1) // 2] * each
        ones, zeros = [1] * each, [0] * each
        return [self.stride] * each, padding, ones, self.transposed, zeros, self.groups


KINDS = {
    "3x3": Kind(3),
    "1x1": Kind(1),
    "of small images": Kind(3, sides=(4, 4)),
    "with strides": Kind(3, 2),
    "patches": Kind(2, 2),
    "in groups": Kind(3, groups=4),
    "in small groups": Kind(3, groups=16),
    "depthwise 3x3": Kind(3, groups=64),
    "depthwise 7x7": Kind(7, groups=64),
    "transposed": Kind(2, 2, transposed=True),
}
OTHER_SIDES = {
    "of a row": Kind(3, sides=(512,)),
    "of a row, depthwise": Kind(4, groups=64, sides=(512,)),
    "of a volume": Kind(3, sides=(8, 16, 16)),
}
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=truth.needs_known_bfloat16)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """How several divide the work is known in outline only."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)


def compare(kind: Kind, dtype: torch.dtype, form: torch.memory_format) -> None:
    with FakeTensorMode():
        inputs, weights = kind.tensors(dtype, form)
        outputs = FORWARD(inputs, weights, None, *kind.how)
        forth = own(FORWARD, (inputs, weights, None, *kind.how))
        back = own(BACKWARD, (outputs, inputs, weights, None, *kind.how, ALL))
    inputs, weights = kind.tensors(dtype, form)
    outputs = FORWARD(inputs, weights, None, *kind.how)
    seen = inputs.nbytes + weights.nbytes + outputs.nbytes
    real = truth.beside(lambda: FORWARD(inputs, weights, None, *kind.how))
    assert forth == pytest.approx(real, abs=WORST * (seen + real))
    seen += inputs.nbytes + weights.nbytes
    real = truth.beside(lambda: BACKWARD(outputs, inputs, weights, None, *kind.how, ALL))
    assert back == pytest.approx(real, abs=WORST * (seen + real))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_of_images(kind: str, dtype: torch.dtype, form: torch.memory_format) -> None:
    compare(KINDS[kind], dtype, form)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OTHER_SIDES)
def test_of_rows_and_volumes(kind: str, dtype: torch.dtype) -> None:
    compare(OTHER_SIDES[kind], dtype, torch.contiguous_format)


def test_large_patches_in_floats() -> None:
    """As a ViT has them; in halves, or with the channels last, it is not known."""
    compare(Kind(16, 16, sides=(64, 64)), torch.float32, torch.contiguous_format)


def test_frozen_weights_need_no_second_pass() -> None:
    inputs, weights = KINDS["3x3"].tensors(torch.float32, torch.contiguous_format)
    how = KINDS["3x3"].how
    outputs = FORWARD(inputs, weights, None, *how)
    trained = own(BACKWARD, (outputs, inputs, weights, None, *how, ALL))
    frozen = own(BACKWARD, (outputs, inputs, weights, None, *how, [True, False, False]))
    assert trained == outputs.nbytes + inputs.nbytes
    assert frozen == outputs.nbytes + weights.nbytes


def test_other_operators_have_nothing() -> None:
    matrix = torch.ones(8, 8)
    assert own(torch.ops.aten.mm.default, (matrix, matrix)) == 0
