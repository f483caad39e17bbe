"""Forward passes of a training that run the model inside DDP, and not DDP.

DDP averages the gradients of a backward pass only after its own forward
(torch/csrc/distributed/c10d/reducer.cpp, ``expect_autograd_hooks_``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.names import variable
from ddoctor.script.objects import INNER
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

DDP = "torch.nn.parallel.DistributedDataParallel"
MODEL = "torch.nn.Module"
ADDS = ("all_reduce", "reduce", "reduce_scatter", "all_reduce_coalesced", "average_gradients")
"""Functions that average gradients by hand, mostly."""
MOST_STEPS = 6
"""Arguments, attributes and variables that are followed to the model that DDP gets."""


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
    wraps = [one for one in program.by_name.get(DDP, ()) if one.node.args]
    # What gets the wrapped model may run it, and what adds gradients up needs no wrapper.
    if wraps and not any(_may_run(call, program) or call.method in ADDS for call in steps):
        for call in steps:
            if _is_raw(_model(call.node.func), call.scope, call.node.lineno, wraps, program):
                yield call


def _may_run(call: Call, program: Program) -> bool:
    function = _model(call.node.func)
    given = [*call.node.args, *(word.value for word in call.node.keywords), function]
    return any(DDP in program.origins(one, call.scope) for one in given)


def _model(function: ast.expr) -> ast.expr:
    """The model in ``model(…)`` and ``model.forward(…)``."""
    named = isinstance(function, ast.Attribute) and function.attr == "forward"
    return function.value if named and isinstance(function, ast.Attribute) else function


def _is_raw(
    node: ast.expr,
    scope: Scope,
    line: int,
    wraps: Sequence[Call],
    program: Program,
    steps: int = MOST_STEPS,
) -> bool:
    """Whether it is the model that DDP gets, by a variable that does not become the wrapper."""
    name = variable(node)
    for wrap in wraps:
        same = name and name == variable(wrap.node.args[0])
        if same and scope.holder(name) == wrap.scope.holder(name):
            target = _target(wrap)
            before = scope is wrap.scope and line < wrap.node.lineno and not wrap.around
            return bool(target) and (target != name or before)
    found = program.values(node, scope) if name and steps else ()
    if len(found) != 1:
        return False
    value, where = found[0]
    return _is_raw(value, where, value.lineno, wraps, program, steps - 1)


def _target(wrap: Call) -> str:
    """The variable that gets the wrapped model; empty: another statement than ``x = DDP(…)``."""
    statement = wrap.statement
    if not isinstance(statement, ast.Assign) or statement.value is not wrap.node:
        return ""
    return variable(statement.targets[0])


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
        (variable(one.node.func) == "self" or variable(one.node.func).startswith("self."))
        and one.node.args
        for method in named
        if method is not None
        for one in method.calls
    )
