"""Training loops over generators of the script that give each rank the same batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.datasets import SHARDS
from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Scope, Statement
from ddoctor.script.streams import OF_ALL, fixed_draws, functions_of, methods_of, words_of

READS = frozenset({"open", "load", "loads", "read", "memmap", "fromfile", "decode", "iter", "rows"})
"""Words of functions that read data; a benchmark makes its batches up."""
PASSES_ON = ("enumerate", "tqdm", "zip", "islice", "iter")


def own_batches(program: Program) -> Iterator[tuple[Statement, Scope]]:
    """The loops, each with the generator; those that may draw otherwise on a rank are none."""
    for statement in program.statements:
        if statement.node in program.training and isinstance(statement.node, ast.For):
            for call in _calls(statement.node.iter, statement.scope):
                scopes = _generator(call, statement.scope, program)
                if scopes and _is_alike(call, scopes, statement.scope, program):
                    yield statement, scopes[0]


def _calls(taken: ast.expr, scope: Scope) -> Iterator[ast.Call]:
    if isinstance(taken, ast.Call) and own_name(taken.func) in PASSES_ON:
        for one in taken.args:
            yield from _calls(one, scope)
    elif isinstance(taken, ast.Call):
        yield taken
    elif name := variable(taken):
        shown = scope.shown(name)
        yield from (one for one in shown if len(shown) == 1 and isinstance(one, ast.Call))


def _generator(call: ast.Call, scope: Scope, program: Program) -> Sequence[Scope]:
    """The function or the methods that yield, with what they call; empty: it is neither."""
    called = program.function(call)
    found = functions_of([called], program) if called is not None else ()
    if called is None:
        found = methods_of(scope.named(call.func), program)
        iterates = [one for one in found if one.name.endswith(".__iter__")]
        found = [*iterates, *(one for one in found if one not in iterates)] if iterates else ()
    yields = found and any(isinstance(one, ast.Yield | ast.YieldFrom) for one in _nodes(found[0]))
    return found if yields else ()


def _nodes(scope: Scope) -> Iterator[ast.AST]:
    return ast.walk(scope.node)


def _is_alike(call: ast.Call, scopes: Sequence[Scope], scope: Scope, program: Program) -> bool:
    given = [*call.args, *(word.value for word in call.keywords)]
    shown = [one for value in given if variable(value) for one in scope.shown(variable(value))]
    if any(SHARDS & lower(source(one)) for one in (*given, *shown)):
        return False
    reads = any(READS & lower(one.method) for each in scopes for one in each.calls)
    draws = any(one.name.startswith(OF_ALL) for each in scopes for one in each.calls)
    if not reads or SHARDS & frozenset(words_of(scopes)):
        return False
    return fixed_draws(scopes, program) is not None or not draws
