"""Forward passes of a training that run the model inside DDP, and not DDP.

DDP averages the gradients of a backward pass only after its own forward
(torch/csrc/distributed/c10d/reducer.cpp, ``expect_autograd_hooks_``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.names import variable
from ddoctor.script.objects import INNER
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

DDP = "torch.nn.parallel.DistributedDataParallel"
MODEL = "torch.nn.Module"


def past_wrapper(program: Program) -> Iterator[Call]:
    """The calls, where no step of a training calls the wrapped model itself."""
    steps = [call for call in program.calls if _is_in_step(call, program)]
    runs = {variable(call.node.func) for call in steps}
    for call in steps:
        wrapped = _wrapped(call.node.func, call.scope, program)
        if wrapped is None or not _runs_a_model(call, program):
            continue
        ddp = program.origins(wrapped, call.scope) == (DDP,)
        if ddp and not {variable(wrapped), f"{variable(wrapped)}.forward"} & runs:
            yield call


def _is_in_step(call: Call, program: Program) -> bool:
    around = program.around(call)
    still = any(one.kind == "no-grad" for one in around)
    return not still and any(one.node in program.training for one in around)


def _wrapped(function: ast.expr, scope: Scope, program: Program) -> ast.expr | None:
    """The model of ``model.module(…)``, ``model.module.encode(…)`` and ``unwrap(model)(…)``.

    None: it is none of them.
    """
    for inner in (function, getattr(function, "value", None)):
        if isinstance(inner, ast.Attribute) and inner.attr == INNER:
            return inner.value
        if isinstance(inner, ast.Call) and inner.args and _unwraps(inner, program):
            return inner.args[0]
    return None


def _unwraps(call: ast.Call, program: Program) -> bool:
    """Whether a function of the script returns the model inside of its argument."""
    called = program.function(call)
    given = called.node.args.args if called is not None else []  # type: ignore[attr-defined]
    returned = program.results(called) if called is not None else ()
    return bool(given) and any(
        isinstance(part, ast.Attribute)
        and part.attr == INNER
        and variable(part.value) == given[0].arg
        for value in returned
        for part in ([value.body, value.orelse] if isinstance(value, ast.IfExp) else [value])
    )


def _runs_a_model(call: Call, program: Program) -> bool:
    """Whether it is the forward of the inner model, or a method of the script that calls layers."""
    function = call.node.func
    if isinstance(function, ast.Call):
        return True
    if isinstance(function, ast.Attribute) and function.attr in (INNER, "forward"):
        return True
    models = (owner for owner, bases in program.bases.items() if MODEL in bases)
    named = (program.functions.get(f"{owner}.{call.method}") for owner in models)
    return any(
        variable(one.node.func).startswith("self.") and one.node.args
        for method in named
        if method is not None
        for one in method.calls
    )
