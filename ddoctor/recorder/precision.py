"""The autocast data type, whether the script or its framework switches it on."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch


class Precision:
    """The data type of the last entry into autocast."""

    def __init__(self) -> None:
        self.autocast = ""

    def install(self) -> None:
        """Hook into each entry into autocast."""
        context: Any = torch.autocast
        enter = context.__enter__

        @wraps(enter)
        def entered(self_: Any) -> Any:
            if self_._enabled and not torch.compiler.is_compiling():
                self.autocast = str(self_.fast_dtype).removeprefix("torch.")
            return enter(self_)

        context.__enter__ = entered
