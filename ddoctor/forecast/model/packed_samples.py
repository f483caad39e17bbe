"""What transformers looks up in values, answered where there are none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unpacked() -> Iterator[None]:
    """One sample in each row, none packed behind another: no mask is made for that.

    transformers (5.0 and later, masking_utils) finds it in the position of each token, and takes
    the mask where it may not look, which most training steps never have.
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
