"""What makes the value of an expression, as far as the source shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.evidence.source_lines import UNKNOWN
from ddoctor.script.names import ENVIRONMENT, variable
from ddoctor.script.scopes import Scope

MOST_STEPS = 4
"""Assignments that are followed from a variable to its value."""
CONVERTS = ("int", "str", "float")
DEVICE = ("cuda:", "cuda")


def origins(node: ast.expr, scope: Scope, steps: int = MOST_STEPS) -> tuple[str, ...]:
    """The full names of the functions that make it, variables of the environment, or literals."""
    return tuple(dict.fromkeys(_origins(node, scope, steps)))


def _origins(node: ast.expr, scope: Scope, steps: int) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield repr(node.value)[:100]
    elif isinstance(node, ast.IfExp):
        yield from _origins(node.body, scope, steps)
        yield from _origins(node.orelse, scope, steps)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, scope, steps)
    elif isinstance(node, ast.Subscript) and scope.names.of(node.value) == "os.environ":
        yield _read(node.slice)
    elif isinstance(node, ast.JoinedStr):
        # f"cuda:{rank}" is made by the rank.
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        first = node.values[0] if node.values else None
        device = isinstance(first, ast.Constant) and first.value in DEVICE
        yield from _origins(parts[0], scope, steps) if device and len(parts) == 1 else (UNKNOWN,)
    elif (name := variable(node)) and steps:
        values = scope.assigned(name)
        for value in values:
            yield from (UNKNOWN,) if value is None else _origins(value, scope, steps - 1)
        if not values:
            yield scope.names.of(node) if isinstance(node, ast.Name) else UNKNOWN
    else:
        yield UNKNOWN


def _of_call(node: ast.Call, scope: Scope, steps: int) -> Iterator[str]:
    name = scope.named(node.func)
    if name in ENVIRONMENT and node.args:
        yield _read(node.args[0])
    elif variable(node.func) in CONVERTS and node.args:
        yield from _origins(node.args[0], scope, steps)
    elif name == "torch.device" and len(node.args) == 2:
        yield from _origins(node.args[1], scope, steps)
    elif name == "torch.device" and node.args and not isinstance(node.args[0], ast.Constant):
        yield from _origins(node.args[0], scope, steps)
    elif name == "torch.distributed.get_rank" and (node.args or node.keywords):
        yield UNKNOWN  # of a group
    else:
        yield name or variable(node.func) or UNKNOWN


def _read(name: ast.expr) -> str:
    known = isinstance(name, ast.Constant) and isinstance(name.value, str)
    return f"os.environ[{name.value}]" if known else UNKNOWN  # type: ignore[attr-defined]
