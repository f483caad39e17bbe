"""Padding of batches: columns that no sample uses, and what single samples have."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from torch import Tensor

from ddoctor.recorder.padding import padding

LENGTHS = (9, 20, 14, 17)


def tokens(width: int, *, left: bool = False, value: int = 0) -> Tensor:
    """Samples of these lengths, of tokens from 5 on, in so many columns."""
    rows = torch.full((len(LENGTHS), width), value)
    for row, length in zip(rows, LENGTHS, strict=True):
        row[:length] = torch.arange(5, 5 + length)
    return rows.flip(1) if left else rows


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("value", [0, 3, -100])
def test_columns_beyond_the_longest(left: bool, value: int) -> None:
    ids = tokens(40, left=left, value=value)
    found = padding([ids, (ids != value).long(), torch.zeros_like(ids)])
    assert found is not None
    assert found.columns == 0.5
    assert found.whole == pytest.approx(1 - fmean(LENGTHS) / 40)


@pytest.mark.parametrize("left", [False, True])
def test_padded_to_the_longest(left: bool) -> None:
    found = padding([tokens(20, left=left)])
    assert found is not None
    assert found == pytest.approx((0, 1 - fmean(LENGTHS) / 20))


@pytest.mark.parametrize(
    "tensors",
    [
        # Rows of one length; and ids whose mask says that what looks like padding counts.
        [torch.randint(5, 90, (4, 64), generator=torch.Generator().manual_seed(0))],
        [tokens(40), torch.arange(40).repeat(4, 1)],
    ],
    ids=["packed", "used by another"],
)
def test_none(tensors: list[Tensor]) -> None:
    assert padding(tensors) == (0, 0)


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.zeros(4, 40)],
        [torch.zeros(4, 40, dtype=torch.long)],
        [tokens(40)[:1]],
        [torch.arange(40).reshape(4, 10)],
        [torch.zeros(4, 40, 3, dtype=torch.long)],
        [torch.eye(40, dtype=torch.long)[:4]],
    ],
    ids=["nothing", "floats", "one value", "one sample", "narrow", "images", "classes"],
)
def test_nothing_to_tell(tensors: list[Tensor]) -> None:
    assert padding(tensors) is None
