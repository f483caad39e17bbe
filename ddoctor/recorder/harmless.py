"""The script must not fail for what it is watched by."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def harmless(look: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
    """None where it raises; what ends the script on purpose passes."""

    @wraps(look)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
        try:
            return look(*args, **kwargs)
        except Exception:
            return None

    return call
