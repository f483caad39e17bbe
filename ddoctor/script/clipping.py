"""Gradients of FSDP1 that a function clips for which each rank has only its part."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.calls import FSDP
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

CLIP = "torch.nn.utils.clip_grad_norm_"
WHOLE = "NO_SHARD"
MOST_STEPS = 4
"""Functions that pass the model on."""


def clipped_in_parts(program: Program) -> Iterator[Call]:
    """Calls of torch's function with the parameters of a model that FSDP1 wraps.

    torch/distributed/fsdp/fully_sharded_data_parallel.py, ``clip_grad_norm_``.
    """
    if any(WHOLE in ast.unparse(one.node) for one in program.by_name.get(FSDP, ())):
        return
    for call in program.by_name.get(CLIP, ()):
        given = call.node.args[0] if call.node.args else None
        takes = given.func if isinstance(given, ast.Call) else None
        named = isinstance(takes, ast.Attribute) and takes.attr == "parameters"
        if named and _is_sharded(takes.value, call.scope, program, MOST_STEPS):  # type: ignore[union-attr]
            yield call


def _is_sharded(model: ast.expr, scope: Scope, program: Program, steps: int) -> bool:
    """Whether the last that a variable gets is FSDP1's, here or where the function is called."""
    caller, given = program.caller(scope), program.passed(scope).get(variable(model))
    if steps and caller is not None and given is not None:
        return _is_sharded(given, caller.scope, program, steps - 1)
    values = scope.assigned(variable(model))
    last = values[-1] if values else model
    return last is not None and program.origins(last, scope) == (FSDP,)
