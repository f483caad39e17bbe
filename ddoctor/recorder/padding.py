"""How much of a batch of token sequences is padding in all of its samples."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, int32, int64

# Shorter ones may be classes, or positions.
SHORTEST = 16
OF_TOKENS = (int64, int32)


def padding(tensors: Sequence[Tensor]) -> float | None:
    """Return the share of columns, 0 to 1, at the longer padded end of all integer matrices.

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
    ends = (
        min(_same(one.flip(1) if backwards else one) for one in telling)
        for backwards in (False, True)
    )
    return max(ends) / width


def _same(matrix: Tensor) -> int:
    """Return how many of the first columns have the value of the first one in all rows; 0: one.

    A token that begins or ends each sample is no padding.
    """
    columns = (matrix == matrix[0, 0]).all(0)
    found = int(columns.long().cumprod(0).sum())
    return found if found > 1 else 0
