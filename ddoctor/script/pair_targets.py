"""Losses that compare a rank's features with those of all ranks, and where the pairs are."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.gathered import INTO_A_LIST, INTO_A_TENSOR, PRODUCTS, flow, names_in
from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope, assignments

LOSS = ("cross_entropy",)
OF_CLASS = "torch.nn.CrossEntropyLoss"
NUMBERS = "arange"
INTO = (INTO_A_LIST, INTO_A_TENSOR)
MOST_STEPS = 4


def without_offset(program: Program) -> Iterator[tuple[Call, ast.expr]]:
    """Each such loss, and the numbers of the pairs, which begin at 0 on all ranks.

    The pairs of a rank begin at its number times its samples, among those of all ranks.
    """
    for call in program.calls:
        given = call.node.args
        if len(given) < 2 or not _is_loss(call, program):
            continue
        every = flow(call.scope, _gathered(call.scope))
        targets = _reached(given[1], call.scope)
        numbers = _numbers(targets)
        own = numbers is not None and not every & {*names_in(numbers)}
        by_rank = any("rank" in lower(name) for one in targets for name in _words(one))
        if numbers is not None and own and not by_rank and _compares(given[0], call.scope, every):
            yield call, numbers


def _is_loss(call: Call, program: Program) -> bool:
    return call.method in LOSS or OF_CLASS in program.origins(call.node.func, call.scope)


def _gathered(scope: Scope) -> set[str]:
    """The variables with what all ranks have: by functions that gather, and the lists they fill."""
    found = {
        name
        for node in ast.walk(scope.node)
        for name, value in assignments(node)
        if value is not None and any(map(_gathers, ast.walk(value)))
    }
    into = (call.node.args for call in scope.calls if call.name in INTO)
    return found | {variable(given[0]) for given in into if len(given) > 1}


def _gathers(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and "gather" in source(node.func).lower()


def _compares(logits: ast.expr, scope: Scope, every: set[str]) -> bool:
    """Whether it multiplies own features, on the left, with those of all ranks."""
    return any(
        not every & {*names_in(left)} and every & {*names_in(right)}
        for one in _reached(logits, scope)
        for left, right in _products(one)
    )


def _products(node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult):
            yield part.left, part.right
        elif isinstance(part, ast.Call) and own_name(part.func) in PRODUCTS and len(part.args) == 2:
            yield part.args[0], part.args[1]


def _numbers(targets: Sequence[ast.expr]) -> ast.Call | None:
    parts = (part for one in targets for part in ast.walk(one))
    return next(
        (one for one in parts if isinstance(one, ast.Call) and own_name(one.func) == NUMBERS), None
    )


def _words(node: ast.expr) -> Iterator[str]:
    yield from (own_name(part) for part in ast.walk(node) if isinstance(part, ast.expr))


def _reached(node: ast.expr, scope: Scope) -> Sequence[ast.expr]:
    """An expression, and what its variables are assigned from."""
    found, ahead = [node], [node]
    for _ in range(MOST_STEPS):
        names = {name for one in ahead for name in names_in(one)}
        shown = (value for name in names for value in scope.shown(name))
        ahead = [value for value in dict.fromkeys(shown) if value not in found]
        found += ahead
    return found
