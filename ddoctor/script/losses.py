"""Statements of a training loop that store a loss with its autograd graph beyond the step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.kept_graphs import NUMBERS, WITHOUT_GRAPH
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Scope, Statement
from ddoctor.script.training_loops import BACKWARD

ACCUMULATES = ("append", "extend", "appendleft")
EMPTIES = ("clear", "pop", "popleft", "backward")


def kept(program: Program) -> Iterator[Statement]:
    """The statements, such as ``total += loss`` with a ``total`` from before the loop."""
    for statement in program.statements:
        loops = [block for block in statement.around if block.node in program.training]
        target, value = stored(statement.node)
        still = any(block.kind == "no-grad" for block in statement.around)
        if not loops or still or not (target or isinstance(statement.node, ast.Expr)):
            continue
        loop = loops[-1].node
        if _is_over_models(loop):
            continue
        losses = set(_passed_back(loop))
        if _is_handed_on(statement.node, losses | _parts(losses, loop), program):
            yield statement
            continue
        held = {name for name in losses & {*_with_graph(value)} if _is_plain(name, statement)}
        if held and target not in losses and not renewed(target, loop):
            yield statement


def _is_over_models(loop: ast.AST) -> bool:
    """Whether a loop goes through models or optimizers, and not through steps."""
    target = getattr(loop, "target", None)
    names = {variable(one) for one in ast.walk(target)} - {""} if target is not None else set()
    called = (node.func for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(
        variable(one) in names
        or (isinstance(one, ast.Attribute) and one.attr == "step" and variable(one.value) in names)
        for one in called
    )


def _parts(losses: set[str], loop: ast.AST) -> set[str]:
    """The variables that a loss is the sum of."""
    return {
        name
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and losses & {*map(variable, node.targets)}
        for name in _with_graph(node.value)
    }


def _is_handed_on(node: ast.stmt, losses: set[str], program: Program) -> bool:
    """Whether it gives a loss to a method of the script that adds it to its sum."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    given = [*call.args, *(word.value for word in call.keywords)]
    if not losses & {one.id for one in given if isinstance(one, ast.Name)}:
        return False
    scope = next((program.called(one) for one in program.calls if one.node is call), None)
    return scope is not None and scope.owner != "" and _adds_up(scope)


def _adds_up(scope: Scope) -> bool:
    """Whether a method adds its arguments, as they are, to attributes of its object."""
    names = {name for name, values in scope.variables.items() if None in values} - {"self"}
    adds = False
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Attribute) and node.attr in WITHOUT_GRAPH:
            return False
        if isinstance(node, ast.Name) and node.id in NUMBERS:
            return False
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        held = target.value if isinstance(target, ast.Subscript) else target
        if (
            held is not None
            and variable(held).startswith("self.")
            and isinstance(node, ast.Assign | ast.AugAssign)
        ):
            adds = adds or bool(names & {*_with_graph(node.value)})
    return adds


def stored(node: ast.stmt) -> tuple[str, ast.AST]:
    """The variable that outlives the statement and what it gets; empty: another statement."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return variable(node.target), node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute) and function.attr in ACCUMULATES:
            return variable(function.value), ast.Tuple(elts=node.value.args, ctx=ast.Load())
    return "", node


def _passed_back(loop: ast.AST) -> Iterator[str]:
    """The variables in ``loss.backward()``, ``scaler.scale(loss).backward()`` and the like.

    Not the object of ``accelerator.backward(loss)``.
    """
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and own_name(node.func) in BACKWARD:
            for one in node.args or [node.func]:
                yield from (part.id for part in ast.walk(one) if isinstance(part, ast.Name))


def _with_graph(value: ast.AST) -> Iterator[str]:
    """The names in an expression whose graph the result holds."""
    if isinstance(value, ast.Attribute):
        if value.attr not in WITHOUT_GRAPH:
            yield from _with_graph(value.value)
    elif isinstance(value, ast.Call):
        # Only what keeps the graph for sure: another function may return a number.
        if isinstance(value.func, ast.Attribute) and value.func.attr in ("float", "mean", "sum"):
            yield from _with_graph(value.func.value)
    elif isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, ast.BinOp):
        yield from (*_with_graph(value.left), *_with_graph(value.right))
    elif isinstance(value, ast.Tuple | ast.List):
        for part in value.elts:
            yield from _with_graph(part)


def _is_plain(name: str, statement: Statement) -> bool:
    """Whether no assignment of the variable takes the graph off, as ``loss = loss.item()`` does."""
    for value in statement.scope.assigned(name):
        for part in ast.walk(value) if value is not None else ():
            if isinstance(part, ast.Attribute) and part.attr in WITHOUT_GRAPH:
                return False
            if isinstance(part, ast.Name) and part.id in NUMBERS:
                return False
    return True


def renewed(target: str, loop: ast.AST) -> bool:
    """Whether the loop assigns or empties the variable elsewhere."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and target in map(variable, node.targets):
            return True
        empties = isinstance(node, ast.Attribute) and node.attr in EMPTIES
        if empties and variable(node.value) == target:  # type: ignore[attr-defined]
            return True
    return False
