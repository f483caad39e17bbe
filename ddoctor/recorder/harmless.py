"""Errors of the recorder must not reach the script."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def harmless(look: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
    """Returns None if the function raises; exceptions that end the script on purpose pass."""

    @wraps(look)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
        try:
            return look(*args, **kwargs)
        except Exception:
            return None

    return call
