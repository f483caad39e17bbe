"""How much of a batch of token sequences is padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, int32, int64

# Shorter ones may be classes, or positions.
SHORTEST = 16
OF_TOKENS = (int64, int32)


class Padding(NamedTuple):
    """Shares of a batch, 0 to 1."""

    columns: float
    """Columns at one end that are padding in all samples."""
    whole: float
    """All padding, of some samples or of all."""


def padding(tensors: Sequence[Tensor]) -> Padding | None:
    """Return how much is padding at the longer padded end of all integer matrices.

    None: the batch has no such matrix, or several samples of it that differ. Tokens, masks and
    labels of one batch have the same width, and are padded at the same end.
    """
    found = [
        one
        for one in tensors
        if one.dtype in OF_TOKENS
        and one.dim() == 2
        and one.device.type == "cpu"
        and len(one) > 1
        and one.shape[1] >= SHORTEST
    ]
    width = max((one.shape[1] for one in found), default=0)
    alike = [one for one in found if one.shape[1] == width]
    # A matrix of one value, such as the types of all tokens, tells nothing.
    telling = [one for one in alike if bool((one != one[0, 0]).any())]
    # Ones and zeros alone may be classes.
    if not any(bool(((one < 0) | (one > 1)).any()) for one in telling):
        return None
    return Padding(
        columns=_at_an_end(telling, _same) / width,
        whole=_at_an_end(telling, _padded) / width,
    )


def _at_an_end(matrices: Sequence[Tensor], count: Callable[[Tensor], float]) -> float:
    """Return the columns that all matrices have at the begin, or at the end if these are more."""
    ends = [matrices, [one.flip(1) for one in matrices]]
    return max(min(map(count, end)) for end in ends)


def _same(matrix: Tensor) -> int:
    """Return how many of the first columns have the value of the first one in all rows; 0: one.

    A token that begins or ends each sample is no padding.
    """
    columns = (matrix == matrix[0, 0]).all(0)
    found = int(columns.long().cumprod(0).sum())
    return found if found > 1 else 0


def _padded(matrix: Tensor) -> float:
    """Return how many of the first columns have one value in the mean row; 0: few rows begin so.

    The longest sample of a batch may have no padding.
    """
    value = matrix[:, 0].mode().values
    runs = (matrix == value).long().cumprod(1).sum(1)
    runs = runs.where(runs > 1, 0)
    return float(runs.float().mean()) if int((runs > 0).sum()) * 2 >= len(runs) else 0.0
