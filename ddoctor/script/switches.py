"""Layers of the script's own models that an option leaves out of the forward pass."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddoctor.script.names import CONFIGS, variable
from ddoctor.script.objects import arguments, defaults
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Scope

Operator = Literal["true", "==", "!=", ">", ">=", "<", "<="]
OPERATORS: Mapping[type[ast.cmpop], Operator] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "==",
    ast.IsNot: "!=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
}
CONVERTS = ("bool", "int", "float", "str")
MOST_STEPS = 6
"""Assignments and calls that are followed from a test to an option."""
LEAVES = (ast.Return, ast.Raise)


@dataclass(frozen=True)
class Test:
    """A comparison of an option, or of a constant, that a branch depends on."""

    option: str
    """Its name, with those of its sections; empty: the source gives the value."""
    given: str
    """The value that the source gives; of an option, its default in a class."""
    operator: Operator
    """``true`` where the value itself is tested."""
    value: str
    negated: bool


Condition = tuple[ast.expr, bool]


def needs(
    forward: ast.FunctionDef, scope: Scope, program: Program
) -> Mapping[str, Sequence[tuple[Test, ...]]]:
    """What must hold at each place where ``forward`` names an attribute of its model."""
    found: dict[str, list[tuple[Test, ...]]] = {}
    for name, conditions in _uses(forward.body, ()):
        tests = tuple(
            test for one, taken in conditions for test in _tests(one, taken, scope, program)
        )
        found.setdefault(name, []).append(tests)
    return found


def _uses(
    body: Sequence[ast.stmt], conditions: tuple[Condition, ...]
) -> Iterator[tuple[str, tuple[Condition, ...]]]:
    """The attributes of ``self`` in these statements, each with the branches around it."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _in_expression(node.test, conditions)
            yield from _uses(node.body, (*conditions, (node.test, True)))
            yield from _uses(node.orelse, (*conditions, (node.test, False)))
            if isinstance(node.body[-1], LEAVES):
                conditions = (*conditions, (node.test, False))
            elif node.orelse and isinstance(node.orelse[-1], LEAVES):
                conditions = (*conditions, (node.test, True))
            continue
        for _, part in ast.iter_fields(node):
            parts = part if isinstance(part, list) else [part]
            statements = [one for one in parts if isinstance(one, ast.stmt)]
            yield from _uses(statements, conditions)
            for one in parts:
                if isinstance(one, ast.AST) and not isinstance(one, ast.stmt):
                    yield from _in_expression(one, conditions)


def _in_expression(
    node: ast.AST, conditions: tuple[Condition, ...]
) -> Iterator[tuple[str, tuple[Condition, ...]]]:
    if isinstance(node, ast.Attribute) and variable(node.value) == "self":
        yield node.attr, conditions
    elif isinstance(node, ast.IfExp):
        yield from _in_expression(node.test, conditions)
        yield from _in_expression(node.body, (*conditions, (node.test, True)))
        yield from _in_expression(node.orelse, (*conditions, (node.test, False)))
    else:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                yield from _uses([part], conditions)
            else:
                yield from _in_expression(part, conditions)


def _tests(
    test: ast.expr, taken: bool, scope: Scope, program: Program, steps: int = MOST_STEPS
) -> Iterator[Test]:
    """The comparisons that all must hold for a branch; none where the source does not show them."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _tests(test.operand, not taken, scope, program, steps)
    elif isinstance(test, ast.BoolOp):
        # All parts of `a and b` hold, and no part of `a or b` where it is false.
        if isinstance(test.op, ast.And) is taken:
            for part in test.values:
                yield from _tests(part, taken, scope, program, steps)
    elif isinstance(test, ast.Compare):
        if len(test.ops) == 1 and type(test.ops[0]) in OPERATORS:
            right, left = test.comparators[0], _value(test.left, scope, program, steps)
            if isinstance(right, ast.Constant) and left is not None:
                operator = OPERATORS[type(test.ops[0])]
                yield from _test(*left, operator, str(right.value), taken, program)
    else:
        found = _value(test, scope, program, steps)
        if found is None:
            return
        value, where = found
        if isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp):
            if steps:
                yield from _tests(value, taken, where, program, steps - 1)
        else:
            yield from _test(value, where, "true", "", taken, program)


def _test(
    value: ast.expr, scope: Scope, operator: Operator, right: str, taken: bool, program: Program
) -> Iterator[Test]:
    if isinstance(value, ast.Constant):
        yield Test("", str(value.value), operator, right, not taken)
    elif (option := _option(value, scope)) and not _changes(option, program):
        default = program.defaults.get(option.rpartition(".")[2], "")
        yield Test(option, default, operator, right, not taken)


def _changes(option: str, program: Program) -> bool:
    """Whether the source assigns an option, such as ``args.bins = 64``."""
    sets = program.attributes.get(option.rpartition(".")[2], ())
    return any(not one.name.startswith("self.") for one in sets)


def _value(
    node: ast.expr, scope: Scope, program: Program, steps: int
) -> tuple[ast.expr, Scope] | None:
    """The option, the constant or the comparison that a value comes from; None: not known."""
    if not steps or isinstance(node, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp):
        return (node, scope) if steps else None
    if isinstance(node, ast.Call) and variable(node.func) in CONVERTS and len(node.args) == 1:
        return _value(node.args[0], scope, program, steps - 1)
    name = variable(node)
    if name.startswith("self.") and name.count(".") == 1:
        own = [
            one for one in program.attributes.get(name[5:], ()) if one.scope.owner == scope.owner
        ]
        value = own[0].value if len(own) == 1 and not own[0].around else None
        return _value(value, own[0].scope, program, steps - 1) if value is not None else None
    if isinstance(node, ast.Name):
        return _of_name(node, scope, program, steps)
    return (node, scope) if _option(node, scope) else None


def _of_name(
    node: ast.Name, scope: Scope, program: Program, steps: int
) -> tuple[ast.expr, Scope] | None:
    values = scope.variables.get(node.id)
    if values is None or len(values) != 1:
        return None
    if values[0] is not None:
        return _value(values[0], scope, program, steps - 1)
    if _option(node, scope):
        return node, scope
    calls = program.calls_of(scope)
    if len(calls) != 1:
        return None
    spread = [word.value for word in calls[0].node.keywords if word.arg is None]
    if spread:
        # `Net(**cfg.model)` passes the options of a section by their names.
        named = ast.Attribute(value=spread[0], attr=node.id, ctx=ast.Load())
        known = len(spread) == 1 and _option(named, calls[0].scope)
        return (named, calls[0].scope) if known else None
    passed = arguments(calls[0].node, scope).get(node.id)
    if passed is not None:
        return _value(passed, calls[0].scope, program, steps - 1)
    default = defaults(scope).get(node.id)
    return (default, scope) if isinstance(default, ast.Constant) else None


def _option(node: ast.expr, scope: Scope) -> str:
    """The name of an option, such as ``model.bins`` of ``cfg.model.bins``; empty: it is none."""
    if isinstance(node, ast.Name):
        # click passes options as arguments of the function that it decorates.
        decorated = getattr(scope.node, "decorator_list", ())
        asks = any("option" in ast.unparse(one) for one in decorated)
        return node.id if asks and scope.variables.get(node.id) == [None] else ""
    path: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            path.append(node.attr)
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            path.append(node.slice.value)
        else:
            return ""
        node = node.value
    path.reverse()
    if isinstance(node, ast.Name) and node.id == "self" and len(path) > 1:
        root, *path = path
    else:
        root = node.id if isinstance(node, ast.Name) else ""
    return ".".join(path) if CONFIGS & lower(root) else ""


def mentions(forward: ast.FunctionDef) -> Counter[str]:
    """How often a forward pass names each attribute."""
    return Counter(one.attr for one in ast.walk(forward) if isinstance(one, ast.Attribute))
