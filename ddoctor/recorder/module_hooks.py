"""Hooks that the script adds to modules while it trains."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from types import CodeType
from typing import Any

from msgspec.structs import replace

from ddoctor.evidence.steps import AddedHooks
from ddoctor.recorder import places, user_calls
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.outermost import modules

KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
REGISTERS = re.compile(r"\.register_\w*hook\(")


def counted() -> Counter[CodeType]:
    """The hooks of all modules now, by the script's function that they run."""
    return _counted() or Counter()


def added(before: Counter[CodeType]) -> AddedHooks | None:
    """The function with most hooks more than ``before``; None: there are no more."""
    found = counted()
    found.subtract(before)
    code = max(found, key=lambda one: found[one], default=None)
    if code is None or found[code] <= 0:
        return None
    line = _registers(code)
    place = user_calls.frame(code, line)
    # The line that registers is in the function around.
    whole = place if line == code.co_firstlineno else replace(place, function="<module>")
    return AddedHooks(number=found[code], line=whole)


@harmless
def _counted() -> Counter[CodeType]:
    hooks = (hook for one in modules() for kind in KINDS for hook in _of(one, kind))
    codes = (getattr(getattr(hook, "__func__", hook), "__code__", None) for hook in hooks)
    return Counter(
        one for one in codes if isinstance(one, CodeType) and places.of_user(one.co_filename)
    )


def _of(module: Any, kind: str) -> list[Any]:
    return list((module.__dict__.get(kind) or {}).values())


def _registers(code: CodeType) -> int:
    """The line that registers hooks, if its file has only one; else that of the function."""
    lines = linecache.getlines(code.co_filename)
    found = [number for number, text in enumerate(lines, 1) if REGISTERS.search(text)]
    return found[0] if len(found) == 1 else code.co_firstlineno
