"""Functions of torch and of Python that the recorder replaces by its own.

Most stay for good. Those that run in every step are removed while no steps are recorded: even a
function that returns at once takes some microseconds after a step has emptied the caches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

ABSENT = object()

Ours = TypeVar("Ours", bound=Callable[..., Any])


def replaces(owner: Any, name: str) -> Callable[[Ours], Ours]:
    """Decorate a function that takes the place of another for good, and looks like it."""

    def put(ours: Ours) -> Ours:
        setattr(owner, name, wraps(getattr(owner, name))(ours))
        return ours

    return put


def compiled() -> bool:
    """Whether torch.compile has compiled anything."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


class Swaps:
    """Functions of torch and of the models' classes, and their replacements."""

    def __init__(self) -> None:
        self._swaps: list[tuple[Any, str, Any, Any]] = []
        self._hooks: list[tuple[Callable[[], Any], int, Any]] = []

    def hook(self, register: Callable[[Any], RemovableHandle], hook: Any) -> None:
        """Register it as a hook of torch."""
        handle = register(hook)
        self._hooks.append((handle.hooks_dict_ref, handle.id, hook))

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Install it."""
        self._swaps.append((owner, name, ours, vars(owner).get(name, ABSENT)))
        setattr(owner, name, ours)

    def out(self) -> None:
        """Remove every replacement that no other code has wrapped since.

        None if anything was compiled: the compiled code may depend on it.
        """
        if compiled():
            return
        for hooks, number, _ in self._hooks:
            hooks().pop(number, None)
        for owner, name, ours, before in self._swaps:
            if vars(owner).get(name, ABSENT) is not ours:
                continue
            if before is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def back(self) -> None:
        """Install every replacement whose original is unchanged."""
        for hooks, number, hook in self._hooks:
            hooks()[number] = hook
        for owner, name, ours, before in self._swaps:
            if vars(owner).get(name, ABSENT) is before:
                setattr(owner, name, ours)
