"""Loops in which every rank reads a DataLoader as the script has made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.arguments import LOADER
from ddoctor.script.names import variable
from ddoctor.script.own_batches import PASSES_ON
from ddoctor.script.program import FEWEST, Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import RANK_TESTS, Call, Scope, Statement


def whole_reads(program: Program) -> Iterator[tuple[Statement, Call]]:
    """The loops, each with the DataLoader; those of a training are none.

    A variable that also gets another value, such as that of ``accelerator.prepare``, is none.
    """
    loaders = {call.node: call for call in program.by_name.get(LOADER, ())}
    for statement in program.statements:
        node, scope = statement.node, statement.scope
        if not isinstance(node, ast.For) or node in program.training | program.epochs:
            continue
        alone = scope in program.of_some_ranks or _tests_rank(statement)
        made = None if alone else _made(_taken(node.iter), scope, program)
        if made in loaders:
            yield statement, loaders[made]


def _tests_rank(statement: Statement) -> bool:
    return any(block.kind in RANK_TESTS for block in statement.around)


def _taken(read: ast.expr) -> ast.expr:
    """What a loop reads, without ``enumerate`` and progress bars."""
    while isinstance(read, ast.Call) and own_name(read.func) in PASSES_ON and len(read.args) == 1:
        read = read.args[0]
    return read


def _made(loader: ast.expr, scope: Scope, program: Program) -> ast.Call | None:
    """The call that makes it, also through the only call of the function around the loop."""
    for _ in range(FEWEST):
        found = program.values(loader, scope) if variable(loader) else ()
        if len(found) != 1:
            break
        loader, scope = found[0]
    return loader if isinstance(loader, ast.Call) else None
