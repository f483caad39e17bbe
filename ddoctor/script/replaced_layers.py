"""Layers that a model gets after its optimizer was made, which has those of before."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.call_order import follows, precedes
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.stale_optimizers import makes_optimizer, renews, trained_names

LAYERS = "torch.nn."


def replaced_layers(program: Program) -> Iterator[tuple[Call, Call]]:
    """What makes such layers, each with the optimizer.

    Nothing, unless every optimizer is made before the layer: another may be made for it.
    """
    optimizers = [call for call in program.calls if makes_optimizer(call)]
    if not optimizers or renews(program):
        return
    for call in program.calls:
        model = _gets(call)
        if not model or not _is_layer(call, program):
            continue
        if not all(precedes(one, call, program) for one in optimizers):
            continue
        for one in optimizers:
            if follows(call, one, program) and _has(one, model, call.scope, program):
                yield call, one
                break


def _gets(layer: Call) -> str:
    """The model whose attribute the layer becomes; empty: none, or it is the model's own method."""
    node = layer.statement
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or node.value is not layer.node:
        return ""
    target = node.targets[0]
    model = variable(target.value) if isinstance(target, ast.Attribute) else ""
    return "" if model == "self" else model


def _is_layer(call: Call, program: Program) -> bool:
    bases = program.bases.get(call.name, ())
    of_torch = call.name.startswith(LAYERS) and call.method[:1].isupper()
    return of_torch or any(base.startswith(LAYERS) for base in bases)


def _has(optimizer: Call, model: str, scope: Scope, program: Program) -> bool:
    """Whether the optimizer has the parameters of the model, or of what holds that part of it."""
    for name in trained_names(optimizer):
        held = name.removesuffix(".module")
        part = f"{model}.".startswith(f"{held}.")
        if part and optimizer.scope.holder(_first(held)) == scope.holder(_first(held)):
            return True
    return False


def _first(name: str) -> str:
    """The variable, or the attribute of ``self``, that a name begins with."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] == "self" else 1])
