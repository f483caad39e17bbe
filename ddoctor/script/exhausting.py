"""Training loops that end on each rank with its own items."""

from __future__ import annotations

import ast

from ddoctor.script.calls import is_collective
from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Statement

SHOWS = ("enumerate", "tqdm", "trange", "track", "iter")
"""Functions that yield all items of what they get."""


def exhausts(loop: Statement, program: Program) -> bool:
    """Whether it takes all items of a variable, and never asks another rank whether it has more."""
    node = loop.node
    if not isinstance(node, ast.For) or not _takes_all(node.iter):
        return False
    if any(isinstance(one, ast.Break | ast.Return) for one in ast.walk(node)):
        return False
    contexts = (one for one in ast.walk(loop.scope.node) if isinstance(one, ast.withitem))
    if any("join" in source(one.context_expr).lower() for one in contexts):
        return False
    for call in program.calls:
        inside = [block.node for block in call.around]
        if node in inside and (is_collective(call) or program.reached(call) is not None):
            after = call.around[inside.index(node) + 1 :]
            if not any(block.kind == "condition" for block in after):
                return False
    return True


def _takes_all(taken: ast.expr) -> bool:
    while isinstance(taken, ast.Call) and own_name(taken.func) in SHOWS and taken.args:
        taken = taken.args[0]
    return bool(variable(taken))
