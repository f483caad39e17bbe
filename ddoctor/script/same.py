"""Whether a value is the same on all ranks, or differs between them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Literal

from ddoctor.script.names import CONFIGS, ENVIRONMENT, variable
from ddoctor.script.objects import arguments, defaults
from ddoctor.script.program import MOST_CALLERS, Assigned, Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Scope
from ddoctor.script.values import CONVERTS

Varies = Literal["same", "by-rank", "unknown"]
RANKS = frozenset({"rank", "ranks", "procid", "localid"})
PROCESSES = frozenset({"process", "index"})
COUNTS = frozenset({"epoch", "epochs", "step", "steps", "iteration", "world"})
"""Words of numbers that all ranks have in common."""
MOST_STEPS = 6
"""Assignments and calls that are followed from an expression to its values."""


def varies(
    node: ast.expr | None, scope: Scope, program: Program, steps: int = MOST_STEPS
) -> Varies:
    """Whether an expression for a seed is the same on all ranks, as far as the source shows it."""
    if node is None or not steps:
        return "unknown"
    if isinstance(node, ast.Constant):
        return "same"
    if isinstance(node, ast.BinOp):
        return _joined(varies(one, scope, program, steps) for one in (node.left, node.right))
    if isinstance(node, ast.UnaryOp):
        return varies(node.operand, scope, program, steps)
    if isinstance(node, ast.IfExp):
        return _joined(varies(one, scope, program, steps) for one in (node.body, node.orelse))
    name = own_name(node)
    if RANKS & lower(name) or lower(name) >= PROCESSES:
        return "by-rank"
    if isinstance(node, ast.Call):
        return _of_call(node, scope, program, steps)
    if isinstance(node, ast.Subscript):
        return _option(name) if variable(node.value) and name else "unknown"
    if COUNTS & lower(name):
        return "same"
    if isinstance(node, ast.Attribute):
        return _of_attribute(node, scope, program, steps)
    return _of_name(node, scope, program, steps) if isinstance(node, ast.Name) else "unknown"


def _joined(kinds: Iterable[Varies]) -> Varies:
    found: set[Varies] = set()
    for one in kinds:
        if one == "unknown":
            return one
        found.add(one)
    if not found:
        return "unknown"
    return "by-rank" if "by-rank" in found else "same"


def _option(name: str) -> Varies:
    """A seed of a configuration is for all ranks."""
    return "same" if "seed" in lower(name) else "unknown"


def _of_call(node: ast.Call, scope: Scope, program: Program, steps: int) -> Varies:
    if variable(node.func) in (*CONVERTS, "abs") and node.args:
        return varies(node.args[0], scope, program, steps)
    read = scope.named(node.func) in ENVIRONMENT or own_name(node.func) in ("get", "getattr")
    if read:
        keys = (one.value for one in node.args if isinstance(one, ast.Constant))
        return _option(next((key for key in keys if isinstance(key, str)), ""))
    called = program.function(node)
    if called is None:
        return "unknown"
    results = iter(program.results(called))
    return _joined(varies(one, called, program, steps - 1) for one in results)


def _of_attribute(node: ast.Attribute, scope: Scope, program: Program, steps: int) -> Varies:
    sets = program.attributes.get(node.attr, ())
    root = variable(node.value)
    if root == "self":
        sets = [one for one in sets if one.scope.owner == scope.owner] or sets
    elif CONFIGS & lower(root):
        # What other classes keep by that name is not the option.
        sets = [one for one in sets if not one.name.startswith("self.") or _is_config(one.scope)]
    return _of_all(sets, program, steps) if sets else _option(node.attr)


def _is_config(scope: Scope) -> bool:
    return bool(CONFIGS & lower(scope.owner.rpartition(".")[2]))


def _of_all(sets: Iterable[Assigned], program: Program, steps: int) -> Varies:
    return _joined(varies(one.value, one.scope, program, steps - 1) for one in sets)


def _of_name(node: ast.Name, scope: Scope, program: Program, steps: int) -> Varies:
    at: Scope | None = scope
    while at is not None and node.id not in at.variables:
        at = at.outer
    if at is None:
        return "unknown"
    if at.variables[node.id] != [None]:
        return _of_all(program.variables.get((at, node.id), ()), program, steps)
    if len(program.calls_of(at)) > MOST_CALLERS:
        return "unknown"
    given = given_to(node.id, at, program)
    return _joined(varies(one, where, program, steps - 1) for one, where in given)


def given_to(name: str, scope: Scope, program: Program) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What the calls of a function pass as an argument, or its default."""
    for call in program.calls_of(scope):
        passed = arguments(call.node, scope)
        if any(word.arg is None for word in call.node.keywords):
            yield None, call.scope
        elif name in passed:
            yield passed[name], call.scope
        else:
            yield defaults(scope).get(name), scope
