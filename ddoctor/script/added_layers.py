"""Layers that a script adds to a model inside DDP.

DDP averages the gradients of those parameters that the model had when it was made
(torch/nn/parallel/distributed.py, ``_build_params_for_reducer``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.call_order import precedes
from ddoctor.script.names import variable
from ddoctor.script.past_wrapper import DDP
from ddoctor.script.program import Program, assigned
from ddoctor.script.scopes import Call, Scope

INSIDE = "module"
ADDS = ("append", "insert", "add_module", "register_module")


def added_layers(program: Program) -> Iterator[Call]:
    """The calls that make them, of models that no line wraps again afterwards."""
    wrappers = program.by_name.get(DDP, ())
    for call in program.calls if wrappers else ():
        parts = call.on.split(".")
        if INSIDE not in parts[1:] or any(precedes(call, one, program) for one in wrappers):
            continue
        method = program.called(call)
        own = parts[-1] == INSIDE and method is not None and _grows(method, program)
        if own or (call.method in ADDS and _makes_layer(call, call.scope, program)):
            yield call


def _grows(method: Scope, program: Program) -> bool:
    """Whether a method gives its model another layer."""
    if any(
        one.method in ADDS and one.on.startswith("self.") and _makes_layer(one, method, program)
        for one in method.calls
    ):
        return True
    return any(
        variable(target).startswith("self.") and _is_layer(one.node.value, method, program)
        for one in program.statements
        if one.scope is method and isinstance(one.node, ast.Assign)
        for target in assigned(one.node)
    )


def _makes_layer(call: Call, scope: Scope, program: Program) -> bool:
    return any(_is_layer(one, scope, program) for one in call.node.args)


def _is_layer(node: ast.expr, scope: Scope, program: Program) -> bool:
    """Whether an expression makes a module of torch or of the script, or is such a variable."""
    if isinstance(node, ast.Name):
        made = [one for one in scope.shown(node.id) if isinstance(one, ast.Call)]
        return any(_is_layer(one, scope, program) for one in made)
    name = scope.names.of(node.func) if isinstance(node, ast.Call) else ""
    of_torch = name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper()
    return of_torch or any(one.endswith("Module") for one in program.bases.get(name, ()))
