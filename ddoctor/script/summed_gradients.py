"""Gradients that a script adds up over the ranks, and never divides by their number."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ddoctor.script.batches import naming_ranks
from ddoctor.script.names import source, variable
from ddoctor.script.own_averaging import GRADIENTS, REDUCE
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Call, assignments
from ddoctor.script.stale_optimizers import makes_optimizer

SCALES = (ast.Div, ast.Mult)
DIVIDES = ("div", "mul")
"""Parts of the names of functions, as ``div_`` and ``torch._foreach_mul_``."""
SCALE_FREE = ("adam", "lion", "adafactor", "lamb", "muon", "rprop", "adagrad", "rmsprop")
"""Optimizers whose steps hardly depend on the scale of the gradients."""


def summed_gradients(program: Program) -> Call | None:
    """What adds them up; None: something may divide them, or the optimizer divides the scale out.

    Whatever multiplies or divides in a line that names the number of ranks may do so.
    """
    if is_scale_free(program):
        return None
    for call in program.by_name.get(REDUCE, ()):
        averages = "AVG" in source(call.node) or _divides(call.scope.node)
        if call.node.args and _is_gradient(call.node.args[0]) and not averages:
            return None if _scales_by_ranks(program) else call
    return None


def is_scale_free(program: Program) -> bool:
    """Whether the steps may hardly depend on the scale of the gradients."""
    optimizers = [call.method.lower() for call in program.calls if makes_optimizer(call)]
    return not optimizers or any(word in one for one in optimizers for word in SCALE_FREE)


def _scales_by_ranks(program: Program) -> bool:
    """Whether a line may multiply or divide by the number of ranks, also by another variable."""
    naming = [one.node for one in naming_ranks(program)]
    named = {name for node in naming for name, _ in assignments(node)}
    return any(map(_divides, naming)) or any(
        _divides(one.node, named) for one in program.statements if not hasattr(one.node, "body")
    )


def _is_gradient(tensor: ast.expr) -> bool:
    """Such as ``p.grad``, ``p.grad.data`` or ``gradient``."""
    if isinstance(tensor, ast.Attribute) and tensor.attr == "data":
        tensor = tensor.value
    return own_name(tensor) in GRADIENTS


def _divides(node: ast.AST, named: Collection[str] | None = None) -> bool:
    """Whether it divides or multiplies anything, or one of these variables."""
    return any(
        named is None or any(variable(part) in named for part in ast.walk(one))
        for one in ast.walk(node)
        if (isinstance(one, ast.BinOp | ast.AugAssign) and isinstance(one.op, SCALES))
        or (isinstance(one, ast.Call) and any(word in own_name(one.func) for word in DIVIDES))
    )
