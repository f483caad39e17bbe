"""What is called in every step: in place while steps are recorded, out of it while they are not.

Even a function that only sees that there is nothing to do takes some microseconds where the step
has emptied the caches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

ABSENT = object()


class Swaps:
    """Functions of torch's and of the models' classes, and what takes their place."""

    def __init__(self) -> None:
        self._swaps: list[tuple[Any, str, Any, Any]] = []
        self._hooks: list[tuple[Callable[[], Any], int, Any]] = []

    def hook(self, register: Callable[[Any], RemovableHandle], hook: Any) -> None:
        """Have torch call it."""
        handle = register(hook)
        self._hooks.append((handle.hooks_dict_ref, handle.id, hook))

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Put it in place."""
        self._swaps.append((owner, name, ours, vars(owner).get(name, ABSENT)))
        setattr(owner, name, ours)

    def out(self) -> None:
        """All that is still in its place, and that nobody has wrapped since.

        Not where anything was compiled: that may depend on what it was compiled with.
        """
        if _has_compiled():
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
        """All whose place is as it was."""
        for hooks, number, hook in self._hooks:
            hooks()[number] = hook
        for owner, name, ours, before in self._swaps:
            if vars(owner).get(name, ABSENT) is before:
                setattr(owner, name, ours)


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])
