"""Statements of a training loop that keep something of each step, which no line lets go."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.kept_graphs import NUMBERS
from ddoctor.script.losses import renewed, stored
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Scope, Statement

SMALL = frozenset(
    {*NUMBERS, "item", "round", "len", "str", "format", "time", "perf_counter", "monotonic"}
)
"""Functions whose result is a number or a short text."""
COUNTS = frozenset({"epoch", "step", "steps", "number", "index", "i", "n", "iteration", "idx"})
"""Words of a loop's number, which no expression shows."""
MOST_STEPS = 4


def kept_values(program: Program) -> Iterator[Statement]:
    """Those such as ``history.append(batch)``, but for numbers and short texts."""
    for statement in program.statements:
        around, scope = program.around(statement), statement.scope
        loops = [block.node for block in around if block.node in program.training]
        if not loops:
            continue
        target, value = _kept(statement.node)
        made = scope.assigned(target) if target else ()
        limited = any(
            isinstance(one, ast.Call) and any(word.arg == "maxlen" for word in one.keywords)
            for one in made
        )
        small = value is None or _is_small(value, scope)
        # What a function makes for itself, ends with its call.
        ends = loops[-1] not in {block.node for block in statement.around} and (
            target in scope.variables
        )
        if made and not (limited or small or ends or _empties(target, loops[-1], scope, program)):
            yield statement


def _empties(target: str, loop: ast.AST, scope: Scope, program: Program) -> bool:
    """Whether the loop, the function or another method of the object empties the container."""
    places = [loop]
    if target.startswith("self."):
        places += [one.node for one in program.methods.get(scope.owner, ()) if not _makes(one)]
    elif target not in scope.variables:
        places.append(scope.node)
    return any(renewed(target, one) for one in places)


def _makes(scope: Scope) -> bool:
    return scope.name.endswith("__init__")


def _kept(node: ast.stmt) -> tuple[str, ast.AST | None]:
    """The container and what it gets; empty: another statement."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Name | ast.Tuple):
            return variable(target.value), node.value
        return "", None
    if isinstance(node, ast.AugAssign) and not isinstance(node.value, ast.List | ast.Tuple):
        return "", None
    return stored(node)


def _is_small(value: ast.AST, scope: Scope, steps: int = MOST_STEPS) -> bool:
    """Whether it is a number or a short text, as far as the source shows it."""
    if isinstance(value, ast.Constant | ast.JoinedStr | ast.Compare):
        return True
    if isinstance(value, ast.Call):
        return own_name(value.func) in SMALL
    if isinstance(value, ast.Tuple | ast.List):
        return all(_is_small(one, scope, steps) for one in value.elts)
    if isinstance(value, ast.Dict):
        return all(_is_small(one, scope, steps) for one in value.values)
    if isinstance(value, ast.BinOp):
        return _is_small(value.left, scope, steps) and _is_small(value.right, scope, steps)
    if isinstance(value, ast.Name) and steps:
        # A counter of the loop: of those that an expression shows, none is a batch.
        shown = [one for one in scope.assigned(value.id) if one is not None]
        counts = bool(COUNTS & lower(value.id))
        return counts or (bool(shown) and all(_is_small(one, scope, steps - 1) for one in shown))
    return isinstance(value, ast.Attribute) and value.attr in SMALL
