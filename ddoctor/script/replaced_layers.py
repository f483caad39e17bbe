"""Layers that a model gets after its optimizer was made, which has those of before."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ddoctor.script.call_order import follows, precedes
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.stale_optimizers import makes_optimizer, renews, trained_names

LAYERS = "torch.nn."
WITH_WEIGHTS = re.compile(
    r"torch\.nn\.(?:\w+\.)*(?:Lazy)?"
    r"(?:Linear|Bilinear|Conv|Embedding|LayerNorm|RMSNorm|GroupNorm|BatchNorm|SyncBatchNorm|"
    r"Sequential|ModuleList|ModuleDict|LSTM|GRU|RNN|MultiheadAttention|Transformer)\w*"
)
"""Layers of torch that have weights; an activation has none to train."""
ADAPTS = frozenset({"get_peft_model", "inject_adapter_in_model"})
"""Functions of peft that add layers to the model that they get."""


def replaced_layers(program: Program) -> Iterator[tuple[Call, Call]]:
    """What makes such layers, each with the optimizer.

    Nothing, unless every optimizer is made before the layer: another may be made for it.
    """
    optimizers = [call for call in program.calls if makes_optimizer(call)]
    if not optimizers or renews(program):
        return
    for call, models in _changes(program):
        if not all(precedes(one, call, program) for one in optimizers):
            continue
        for one in optimizers:
            had = any(_has(one, model, call.scope, program) for model in models)
            if had and follows(call, one, program):
                yield call, one
                break


def _changes(program: Program) -> Iterator[tuple[Call, Sequence[str]]]:
    """The calls that give a model a layer, each with the variables that may hold the model."""
    changing: dict[Scope, None] = {}
    for call in program.calls:
        holder = _gets(call, program)
        if holder:
            yield call, [holder]
            changing[call.scope] = None
        elif own_name(call.node.func) in ADAPTS:
            yield call, _given(call)
    # The model of such a function is what it is called with.
    for scope in changing:
        for call in program.calls_of(scope):
            if call.scope is not scope:
                yield call, _given(call)


def _given(call: Call) -> Sequence[str]:
    values = (*call.node.args, *(word.value for word in call.node.keywords))
    return [name for name in map(variable, values) if name]


def _gets(call: Call, program: Program) -> str:
    """The variable whose attribute becomes a layer; empty: none, or it is the model's own method.

    ``call``: what makes the layer in an assignment, or ``setattr``.
    """
    node = call.statement
    holder: ast.expr | None = None
    value: ast.expr | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.value is call.node:
        (target,) = node.targets
        holder = target.value if isinstance(target, ast.Attribute) else None
        value = call.node
    elif own_name(call.node.func) == "setattr" and len(call.node.args) == len(("on", "name", "to")):
        holder, _, value = call.node.args
    name = variable(holder) if holder is not None else ""
    layer = name not in {"", "self"} and value is not None and _is_layer(value, call.scope, program)
    return name if layer else ""


def _is_layer(value: ast.expr, scope: Scope, program: Program) -> bool:
    """Whether it is a new layer with weights, also by a variable."""
    if not isinstance(value, ast.Call):
        shown = scope.shown(variable(value)) if isinstance(value, ast.Name) else ()
        calls = [one for one in shown if isinstance(one, ast.Call)]
        return bool(calls) and all(_is_layer(one, scope, program) for one in calls)
    name = scope.named(value.func)
    own = any(base.startswith(LAYERS) for base in program.bases.get(name, ()))
    return own or WITH_WEIGHTS.fullmatch(name) is not None


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
