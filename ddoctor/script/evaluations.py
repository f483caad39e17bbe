"""Evaluations that build the graphs of gradients, which nothing there uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.kept_graphs import NUMBERS, WITHOUT_GRAPH
from ddoctor.script.losses import renewed, stored
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Call
from ddoctor.script.training_loops import BACKWARD

SWITCHES = ("set_grad_enabled", "functional_call")
"""Calls by which a script may switch gradients off, or compute them in another way."""
FREEZES = "requires_grad_"
USES = frozenset({*BACKWARD, "grad", "jacrev", "jacobian", "vjp", "jvp", "hessian"})
"""Functions that need the graph."""
NO_NUMBERS = frozenset({*WITHOUT_GRAPH, "argmax", "argmin", "max", "topk", "sort", "eq"})
"""Methods and attributes whose results have no graph, or a part of them."""


@dataclass(frozen=True)
class Evaluation:
    """A pass of a model in evaluation mode."""

    model: Call
    keeps: ast.stmt | None
    """What keeps a result of each batch with its graph; None: nothing is seen."""


def evaluations_with_graphs(program: Program) -> Iterator[Evaluation]:
    """The passes in a loop after the model's ``eval()``, with no ``no_grad()`` around."""
    if any(call.method in SWITCHES for call in program.calls):
        return
    for call in program.calls:
        if call.method == "eval" and call.on and not call.node.args and not _freezes(call):
            yield from _of_model(call, program)


def _freezes(still: Call) -> bool:
    """Whether its statement also freezes the model: ``model.eval().requires_grad_(False)``."""
    return isinstance(still.statement, ast.Expr | ast.Assign) and any(
        own_name(node.func) == FREEZES
        for node in ast.walk(still.statement)
        if isinstance(node, ast.Call)
    )


def _of_model(still: Call, program: Program) -> Iterator[Evaluation]:
    """The first pass of the model after it, in the same function."""
    outside = {block.node for block in still.loops}
    for call in still.scope.calls:
        if call.on == still.on and call.method == FREEZES:
            return
        if call.node.lineno <= still.node.lineno:
            continue
        if call.on == still.on and call.method == "train":
            return
        if variable(call.node.func) == still.on:
            loops = [block.node for block in call.loops if block.node not in outside]
            if loops and not (_is_safe(call, program) or _uses_graphs(loops[0])):
                yield Evaluation(call, next(_keeps(loops[0], call), None))
            return


def _is_safe(call: Call, program: Program) -> bool:
    """Whether it computes no gradients, in its function or by what calls that, or trains."""
    around = [program.around(one) for one in (call, *program.calls_of(call.scope))]
    return any(
        block.kind == "no-grad" or block.node in program.training
        for blocks in around
        for block in blocks
    )


def _uses_graphs(loop: ast.AST) -> bool:
    return any(own_name(node.func) in USES for node in ast.walk(loop) if isinstance(node, ast.Call))


def _keeps(loop: ast.AST, model: Call) -> Iterator[ast.stmt]:
    """The statements that add a result of the model, unchanged, to what outlives the batch."""
    results: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and _has_graph(node.value, results, model):
            results |= {name for one in node.targets for name in _targets(one)}
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign | ast.Expr):
            target, value = stored(node)
            if target and _has_graph(value, results, model) and not renewed(target, loop):
                yield node


def _targets(node: ast.expr) -> Iterator[str]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    yield from (variable(one) for one in parts)


def _has_graph(value: ast.AST, results: set[str], model: Call) -> bool:
    """Whether an expression has one of these results, or the model's, with nothing taken off."""
    nodes = [*ast.walk(value)]
    numbers = any(
        isinstance(node, ast.Compare)
        or (isinstance(node, ast.Attribute) and node.attr in NO_NUMBERS)
        or (isinstance(node, ast.Call) and own_name(node.func) in {*NUMBERS, *NO_NUMBERS})
        for node in nodes
    )
    return not numbers and any(
        node is model.node or (isinstance(node, ast.Name) and node.id in results) for node in nodes
    )
