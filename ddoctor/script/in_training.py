"""Which branches of a helper the training takes, in a run of several ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.names import source, variable
from ddoctor.script.objects import arguments, defaults
from ddoctor.script.program import MOST_CALLERS, Assigned, Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Block, Scope

TRAINS = frozenset({"train", "training", "trains"})
EVALUATES = frozenset({"val", "valid", "validation", "test", "eval", "evaluate", "dev", "infer"})
SEVERAL = frozenset({"distributed", "ddp", "multi", "parallel", "initialized", "several", "dist"})
SIZES = frozenset({"world", "gpus", "ranks", "replicas", "processes", "nproc"})


def holds(test: ast.expr | None, scope: Scope, *, negated: bool = False) -> bool | None:
    """Whether a test is true for the training data, with several ranks; None: not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return holds(test.operand, scope, negated=not negated)
    known = _of_operator(test, scope) if isinstance(test, ast.BoolOp) else _single(test, scope)
    return known if known is None else known is not negated


def _of_operator(test: ast.BoolOp, scope: Scope) -> bool | None:
    parts = [holds(one, scope) for one in test.values]
    decides = isinstance(test.op, ast.Or)
    if decides in parts:
        return decides
    return None if None in parts else not decides


def _single(test: ast.expr | None, scope: Scope) -> bool | None:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test, test.ops[0], test.comparators[0])
    if test is None or not isinstance(test, ast.Name | ast.Attribute | ast.Call):
        return None
    called = test.func if isinstance(test, ast.Call) else test
    known = _by_words(lower(variable(called).rpartition(".")[2]))
    shown = scope.shown(variable(test)) if known is None and variable(test) else ()
    return _single(shown[0], scope) if len(shown) == 1 and shown[0] is not test else known


def _by_words(words: frozenset[str]) -> bool | None:
    if words & EVALUATES:
        return False
    return True if words & (TRAINS | SEVERAL) else None


def _compared(test: ast.Compare, operator: ast.cmpop, right: ast.expr) -> bool | None:
    if not isinstance(right, ast.Constant):
        return None
    if isinstance(right.value, str) and isinstance(operator, ast.Eq | ast.NotEq):
        words = lower(right.value)
        known = False if words & EVALUATES else True if words & TRAINS else None
        return known if known is None else known is isinstance(operator, ast.Eq)
    if right.value == 1 and SIZES & lower(source(test.left)):
        return isinstance(operator, ast.Gt | ast.NotEq)
    return None


def takes(around: Sequence[Block], scope: Scope) -> bool | None:
    """Whether the training reaches what these blocks contain; None: not known."""
    parts = [
        holds(one.test, scope, negated=one.negated) for one in around if one.kind == "condition"
    ]
    if False in parts:
        return False
    return None if None in parts else True


def values(
    name: str, scope: Scope, program: Program
) -> Iterator[tuple[ast.expr | None, Scope]] | None:
    """What a variable may be in the training, each with its function; None: not known."""
    at: Scope | None = scope
    while at is not None and not program.variables.get((at, name)) and name not in at.variables:
        at = at.outer
    if name.startswith("self."):
        sets: Sequence[Assigned] = [
            one
            for one in program.attributes.get(name.removeprefix("self."), ())
            if one.scope.owner == scope.owner
        ]
    elif at is None:
        return None
    else:
        sets = program.variables.get((at, name), ())
        if not sets:
            return _given(name, at, program)
    kept: list[tuple[ast.expr | None, Scope]] = []
    for one in sets:
        reached = takes(one.around, one.scope)
        if reached:
            kept = []
        if reached is not False:
            kept.append((one.value, one.scope))
    return iter(kept)


def _given(
    name: str, scope: Scope, program: Program
) -> Iterator[tuple[ast.expr | None, Scope]] | None:
    """What the calls for the training pass as an argument."""
    calls = [
        call
        for call in program.calls_of(scope)
        if takes(call.around, call.scope) is not False
        and not EVALUATES & lower(source(call.statement)[:200])
    ]
    if not 0 < len(calls) <= MOST_CALLERS or any(
        word.arg is None for call in calls for word in call.node.keywords
    ):
        return None
    passed = [(arguments(call.node, scope).get(name), call.scope) for call in calls]
    default = defaults(scope).get(name)
    return iter([(value, where) if value else (default, scope) for value, where in passed])
