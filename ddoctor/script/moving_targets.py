"""Moving averages of a model that a training step calls with gradients.

No optimizer trains them, as those of BYOL, MoCo or DINO: each backward pass computes their
gradients for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.evidence.source_text import below
from ddoctor.script.discarded_passes import ENDS_GRAPHS
from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.teachers import LOSSES, freezes, without_graph

CHANGES = frozenset({"lerp_", "mul_", "copy_"})
"""Methods of a parameter by which it takes the value of another."""


@dataclass(frozen=True, eq=False)
class MovingTarget:
    """The call of such a model in a step, and where it is averaged."""

    called: Call
    averaged: Call


def moving_targets(program: Program) -> Iterator[MovingTarget]:
    """Those whose result goes into a loss; nothing, if the script freezes parameters anywhere."""
    averages = [(one, name) for one in program.calls if (name := _averaged(one))]
    if not averages or freezes(program):
        return
    for called in program.calls:
        name = variable(called.node.func).removesuffix(".module")
        for one, target in averages:
            same = name == target and called.scope.holder(name) == one.scope.holder(name)
            if same and _goes_into_a_loss(called, program):
                yield MovingTarget(called, one)
                break


def _averaged(call: Call) -> str:
    """The model in ``zip(target.parameters(), model.parameters())`` around such a change."""
    loop = call.loops[-1].node if call.loops and call.method in CHANGES else None
    if not isinstance(loop, ast.For) or own_name(loop.iter) != "zip":
        return ""
    first = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else None
    item = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    changes = item is not None and call.on.removesuffix(".data") == variable(item)
    if not changes or not isinstance(first, ast.Call) or own_name(first.func) != "parameters":
        return ""
    model = first.func.value if isinstance(first.func, ast.Attribute) else None
    return variable(model).removesuffix(".module") if model is not None else ""


def _goes_into_a_loss(called: Call, program: Program) -> bool:
    """Whether a training step computes a loss of its result, with the graph."""
    scope = called.scope
    if not _is_in_a_step(scope, called, program) or without_graph(called, program):
        return False
    results = {
        variable(part)
        for one in getattr(called.statement, "targets", ())
        for part in below(one)
        if variable(part)
    }
    uses = [one for one in scope.calls if one is not called and results & _read(one)]
    if any(one.method in ENDS_GRAPHS for one in scope.calls if results & _on(one)):
        return False
    named = LOSSES & lower(scope.name.rpartition(".")[2])
    return bool(uses) and bool(named or any(LOSSES & lower(source(one.node.func)) for one in uses))


def _is_in_a_step(scope: Scope, called: Call, program: Program) -> bool:
    """Whether the training loop calls it, and nothing around it switches gradients off."""
    around = list(program.around(called))
    for _ in range(3):
        caller = program.caller(scope)
        if caller is None:
            break
        around += program.around(caller)
        scope = caller.scope
    return any(block.node in program.training for block in around) and not any(
        block.kind == "no-grad" for block in around
    )


def _read(call: Call) -> set[str]:
    given = (*call.node.args, *(word.value for word in call.node.keywords))
    return {variable(part) for one in given for part in below(one)}


def _on(call: Call) -> set[str]:
    return {variable(part) for part in below(call.node)}
