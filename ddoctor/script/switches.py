"""Layers of the script's own models that an option leaves out of the forward pass."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddoctor.script.names import variable
from ddoctor.script.options import MOST_STEPS, changes, held, option_name
from ddoctor.script.program import Program
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
    for name, conditions in uses(forward.body):
        tests = tuple(
            test for one, taken in conditions for test in _tests(one, taken, scope, program)
        )
        found.setdefault(name, []).append(tests)
    return found


def uses(
    body: Sequence[ast.stmt], conditions: tuple[Condition, ...] = ()
) -> Iterator[tuple[str, tuple[Condition, ...]]]:
    """The attributes of ``self`` in these statements, each with the branches around it."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _in_expression(node.test, conditions)
            yield from uses(node.body, (*conditions, (node.test, True)))
            yield from uses(node.orelse, (*conditions, (node.test, False)))
            if isinstance(node.body[-1], LEAVES):
                conditions = (*conditions, (node.test, False))
            elif node.orelse and isinstance(node.orelse[-1], LEAVES):
                conditions = (*conditions, (node.test, True))
            continue
        for _, part in ast.iter_fields(node):
            parts = part if isinstance(part, list) else [part]
            statements = [one for one in parts if isinstance(one, ast.stmt)]
            yield from uses(statements, conditions)
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
                yield from uses([part], conditions)
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
            right, left = test.comparators[0], held(test.left, scope, program, steps)
            if isinstance(right, ast.Constant) and left is not None:
                operator = OPERATORS[type(test.ops[0])]
                yield from _test(*left, operator, str(right.value), taken, program)
    else:
        found = held(test, scope, program, steps)
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
    elif (option := option_name(value, scope, program)) and not changes(option, program):
        default = program.defaults.get(option.rpartition(".")[2], "")
        yield Test(option, default, operator, right, not taken)


def mentions(forward: ast.FunctionDef) -> Counter[str]:
    """How often a forward pass names each attribute."""
    return Counter(one.attr for one in ast.walk(forward) if isinstance(one, ast.Attribute))
