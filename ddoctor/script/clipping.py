"""Gradients that are clipped at the wrong place, or of which each rank clips only its part."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from ddoctor.script.calls import FSDP
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.step_order import in_each_turn
from ddoctor.script.training_loops import BACKWARD

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
OPTIMIZERS = "torch.optim."
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


def clipped_too_late(program: Program) -> Iterator[Call]:
    """Calls that clip gradients which nothing uses afterwards, in each turn of a training loop."""
    for scope in program.scopes:
        of_loops: dict[ast.AST, list[tuple[str, Call]]] = defaultdict(list)
        for call in scope.calls:
            kind, loop = _kind(call, program), in_each_turn(call, program)
            if kind and loop is not None:
                of_loops[loop].append((kind, call))
        for calls in of_loops.values():
            kinds = [kind for kind, _ in calls]
            # Several optimizers take turns in other orders.
            if not all(kinds.count(kind) == 1 for kind in ("backward", "step", "zero")):
                continue
            for place, (kind, call) in enumerate(calls):
                before, after = kinds[place - 1], kinds[(place + 1) % len(kinds)]
                if kind == "clip" and (before == "zero" or (before, after) == ("step", "zero")):
                    yield call


def _kind(call: Call, program: Program) -> str:
    """What a call does with gradients; empty: something else."""
    if call.method in CLIPS:
        return "clip"
    if call.method in BACKWARD:
        return "backward"
    if call.receiver is None:
        return ""
    if call.method == "zero_grad":
        return "zero"
    made = program.origins(call.receiver, call.scope) if call.method == "step" else ()
    scales = "scaler" in lower(call.on)
    return "step" if scales or any(one.startswith(OPTIMIZERS) for one in made) else ""


def _is_sharded(model: ast.expr, scope: Scope, program: Program, steps: int) -> bool:
    """Whether the last that a variable gets is FSDP1's, here or where the function is called."""
    caller, given = program.caller(scope), program.passed(scope).get(variable(model))
    if steps and caller is not None and given is not None:
        return _is_sharded(given, caller.scope, program, steps - 1)
    values = scope.assigned(variable(model))
    last = values[-1] if values else model
    return last is not None and program.origins(last, scope) == (FSDP,)
