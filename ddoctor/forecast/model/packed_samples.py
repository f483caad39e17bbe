"""Answers a question that transformers asks of tensor values, for tensors without values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unpacked() -> Iterator[None]:
    """Treat each row as one sample, not as several packed ones, so that no mask is made for that.

    transformers (5.0 and later, masking_utils) finds packing by the position of each token. Without
    values it makes the mask, which most training steps do not have.
    """
    masks = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    looks = getattr(masks, name, None)
    if masks is None or looks is None:
        yield
        return
    setattr(masks, name, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masks, name, looks)
