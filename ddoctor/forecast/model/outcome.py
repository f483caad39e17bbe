"""What a forward pass returns to a training step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Outcome(NamedTuple):
    """The outputs of a forward pass, as a tuple, in which FSDP finds tensors."""

    loss: Tensor
