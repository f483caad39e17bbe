"""What a loss keeps, and what it has for itself, against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ddoctor.memory_tracking.replacements import LOSSES, MEAN, NONE, own
from tests.forecast import truth

SUM = 2
KINDS = sorted(LOSSES, key=str)


def images() -> Tensor:
    return torch.ones(4, 3, 32, 32)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("loss", KINDS, ids=str)
def test_what_is_kept_with_it(loss: Callable[..., Tensor], reduction: int) -> None:
    told = LOSSES[loss](images(), images(), reduction)
    real = loss(images(), images(), reduction)
    assert told.shape == real.shape
    assert told.untyped_storage().nbytes() == real.untyped_storage().nbytes()


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("loss", KINDS, ids=str)
def test_what_it_has_for_itself(loss: Callable[..., Tensor], reduction: int) -> None:
    one, other = images(), images()
    real = truth.beside(lambda: loss(one, other, reduction))
    assert own(loss, (one, other, reduction)) == pytest.approx(real, abs=64)


def test_other_losses_are_as_they_look() -> None:
    other = torch.ops.aten.huber_loss.default
    assert other not in LOSSES
    assert own(other, (images(), images())) == 0
    assert other(images(), images()).untyped_storage().nbytes() == images().itemsize
