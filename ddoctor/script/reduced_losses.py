"""Losses that a script averages over the ranks before their backward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.batches import naming_ranks
from ddoctor.script.names import source, variable
from ddoctor.script.own_averaging import REDUCE
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call
from ddoctor.script.summed_gradients import is_scale_free
from ddoctor.script.training_loops import BACKWARD


def reduced_losses(program: Program) -> Iterator[tuple[Call, ast.stmt]]:
    """Each sum over the ranks, with the statement that divides it by their number.

    The division counts for the gradients, and the sum does not: autograd does not know of it. None
    where the optimizer divides the scale out.
    """
    if is_scale_free(program):
        return
    for call in program.by_name.get(REDUCE, ()):
        loss = variable(call.node.args[0]) if call.node.args else ""
        loops = [block.node for block in call.loops if block.node in program.training]
        if not loss or not loops or "AVG" in source(call.node):
            continue
        back = [
            one.node.lineno
            for one in call.scope.calls
            if one.method in BACKWARD and one.loops and one.loops[-1].node is loops[-1]
        ]
        for one in naming_ranks(program):
            within = one.scope is call.scope and any(
                block.node is loops[-1] for block in one.around
            )
            after = any(call.node.lineno < one.node.lineno <= line for line in back)
            if within and after and _divides(one.node, loss) and _is_passed_back(call, loss):
                yield call, one.node
                break


def _divides(node: ast.stmt, loss: str) -> bool:
    """Such as ``loss /= world``, ``loss = loss / world`` and ``(loss / world).backward()``."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div) and variable(node.target) == loss
    again = not isinstance(node, ast.Assign) or any(variable(one) == loss for one in node.targets)
    return again and any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and variable(part.left) == loss
        for part in ast.walk(node)
    )


def _is_passed_back(call: Call, loss: str) -> bool:
    return any(
        one.method in BACKWARD and loss in {variable(part) for part in ast.walk(one.node)}
        for one in call.scope.calls
    )
