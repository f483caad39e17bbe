"""Backward passes through a model whose gradients are zeroed before its optimizer takes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.stale_optimizers import makes_optimizer, trained_names
from ddoctor.script.training_loops import BACKWARD

ZEROES, STEPS = "zero_grad", "step"
ENDS_GRAPHS = ("detach", "no_grad", "inference_mode")
FREEZES, TOGGLES = "requires_grad_", "toggle_optimizer"
"""Methods by which a script keeps gradients from a model; the second is Lightning's."""


@dataclass(frozen=True, eq=False)
class Pass:
    """Where another model gets what a model made, and learns from it."""

    made: Call
    used: Call
    back: Call


def discarded_passes(program: Program) -> Iterator[Pass]:
    """Those of which the source shows that the first model's gradients are zeroed.

    Nothing, if the script freezes parameters at times, but those of a model that it names.
    """
    frozen = {call.on.removesuffix(".module") for call in program.calls if call.method == FREEZES}
    toggles = any(call.method == TOGGLES for call in program.calls)
    sets = any(
        isinstance(part, ast.Attribute) and part.attr == "requires_grad"
        for one in program.statements
        if isinstance(one.node, ast.Assign)
        for part in one.node.targets
    )
    trained = _trained(program)
    if toggles or sets or frozen - trained.keys() or len(set(trained.values())) < 2:
        return
    for scope in program.scopes:
        for used in scope.calls:
            learner = trained.get(_model(used))
            for made in _made(used, scope, trained):
                if _model(made) in frozen:
                    continue
                maker = trained[_model(made)]
                back = _next(scope, used, BACKWARD)
                taken = _next(scope, back, (STEPS,)) if back is not None else None
                if taken is None or back is None or maker == learner or taken.on != learner:
                    continue
                if _zeroes_first(maker, taken, scope, program):
                    yield Pass(made, used, back)


def _trained(program: Program) -> Mapping[str, str]:
    """The variables of the optimizers, by those of their models, as the source writes them."""
    found: dict[str, str] = {}
    for call in filter(makes_optimizer, program.calls):
        node = call.statement
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for model in trained_names(call):
                found[model.removesuffix(".module")] = variable(node.targets[0])
    return {model: optimizer for model, optimizer in found.items() if model and optimizer}


def _model(call: Call) -> str:
    return variable(call.node.func).removesuffix(".module")


def _made(used: Call, scope: Scope, trained: Mapping[str, str]) -> Iterator[Call]:
    """The calls of trained models that made a variable among the arguments."""
    if _model(used) not in trained or _ends(used):
        return
    given = chain(used.node.args, (word.value for word in used.node.keywords))
    names = [
        part.id
        for one in given
        if not any(end in source(one) for end in ENDS_GRAPHS)
        for part in ast.walk(one)
        if isinstance(part, ast.Name)
    ]
    for name in names:
        before = [
            call
            for call in scope.calls
            if call.node.lineno < used.node.lineno and _assigns(call, name)
        ]
        # The last line that gives it a value.
        last = before[-1] if before else used
        if _model(last) in trained and not _ends(last) and last.around == used.around:
            yield last


def _assigns(call: Call, name: str) -> bool:
    node = call.statement
    return (
        isinstance(node, ast.Assign)
        and node.value is call.node
        and [variable(one) for one in node.targets] == [name]
    )


def _ends(call: Call) -> bool:
    return any(block.kind == "no-grad" for block in call.around)


def _next(scope: Scope, after: Call, methods: tuple[str, ...]) -> Call | None:
    """The first later call of the function that has one of these names."""
    later = (call for call in scope.calls if call.node.lineno > after.node.lineno)
    return next((call for call in later if call.method in methods), None)


def _zeroes_first(optimizer: str, after: Call, scope: Scope, program: Program) -> bool:
    """Whether an optimizer zeroes its gradients before its next step, here or where it steps."""
    places = [call for call in scope.calls if call.node.lineno > after.node.lineno]
    for calls in (places, *(one.calls for one in program.scopes if one is not scope)):
        mine = [call for call in calls if call.on == optimizer and call.method in (ZEROES, STEPS)]
        if mine:
            return mine[0].method == ZEROES
    return False
