"""How many turns the loops around the training have on this rank, as far as that is known."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from inspect import getattr_static
from itertools import islice
from types import FrameType
from typing import Any

import numpy as np
import torch

from ddoctor.evidence.loading import LoopTurns
from ddoctor.recorder import places, user_calls
from ddoctor.recorder.harmless import harmless

SHOWS = ("enumerate", "tqdm", "track", "iter", "list", "reversed")
"""Functions that go through all items of what they get."""
SIZED = (list, tuple, dict, set, str, range, np.ndarray)
"""Types whose length calls no code of the user's."""
MOST_LOOPS, MOST_NUMBERS = 8, 8
UNKNOWN = object()


@harmless
def turns() -> tuple[LoopTurns, ...]:
    """Those of all ``for`` loops of the user's on the stack, the innermost first."""
    found: list[LoopTurns] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < MOST_LOOPS:
        if places.of_user(frame.f_code.co_filename):
            own = user_calls.loops(frame.f_code, frame.f_lineno or 0)
            found += [_turns(loop, frame) for loop in own]
        frame = frame.f_back
    return tuple(found)


def _turns(loop: ast.For, frame: FrameType) -> LoopTurns:
    variables = {**frame.f_globals, **frame.f_locals}
    goes = loop.iter
    while isinstance(goes, ast.Call) and _name(goes.func) in SHOWS and goes.args:
        goes = goes.args[0]
    length = _length(goes, variables)
    numbers = islice(_numbers(goes, variables), MOST_NUMBERS) if length is None else ()
    return LoopTurns(
        rank=0,
        at=places.shown(frame.f_code, loop.lineno),
        text=user_calls.text(frame.f_code, loop.lineno),
        turns=length,
        numbers=dict(numbers),
    )


def _length(goes: ast.expr, variables: Mapping[str, Any]) -> int | None:
    if isinstance(goes, ast.Call) and _name(goes.func) == "range":
        given = [_number(one, variables) for one in goes.args]
        known = [one for one in given if one is not None]
        return len(range(*known)) if len(known) == len(given) > 0 else None
    return _size(_value(goes, variables))


def _size(value: Any) -> int | None:
    if isinstance(value, torch.Tensor):
        return len(value) if value.dim() else None
    return len(value) if type(value) in SIZED else None


def _number(given: ast.expr, variables: Mapping[str, Any]) -> int | None:
    """A whole number, also of ``len(rows)`` or ``len(rows) // size``."""
    if isinstance(given, ast.Call) and _name(given.func) == "len" and len(given.args) == 1:
        return _size(_value(given.args[0], variables))
    if isinstance(given, ast.BinOp):
        left, right = _number(given.left, variables), _number(given.right, variables)
        if left is None or right is None:
            return None
        if isinstance(given.op, ast.FloorDiv) and right:
            return left // right
        joins = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        return joins.get(type(given.op))
    value = given.value if isinstance(given, ast.Constant) else _value(given, variables)
    return value if type(value) is int else None


def _numbers(goes: ast.expr, variables: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The whole numbers that a loop gives to a function of which the length is not known."""
    for part in ast.walk(goes) if isinstance(goes, ast.Call) else ():
        if isinstance(part, ast.Name | ast.Attribute):
            value = _value(part, variables)
            if type(value) is int:
                yield ast.unparse(part), value


def _value(node: ast.expr, variables: Mapping[str, Any]) -> Any:
    """What a variable or an attribute holds, without a call of the user's code."""
    if isinstance(node, ast.Name):
        return variables.get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        of = _value(node.value, variables)
        held = getattr_static(of, node.attr, UNKNOWN) if of is not UNKNOWN else UNKNOWN
        return held if not hasattr(held, "__get__") else UNKNOWN
    return UNKNOWN


def _name(function: ast.expr) -> str:
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))
