"""Models in evaluation mode that a training step calls with gradients.

``eval()`` changes what layers such as dropout do, and keeps no gradients from the parameters
(torch/nn/modules/module.py, ``Module.eval``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.script.discarded_passes import ENDS_GRAPHS
from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.stale_optimizers import makes_optimizer, trained_names

EVALUATES, TRAINS = "eval", "train"
FREEZES = frozenset({"requires", "freeze", "freezes", "frozen"})
"""Words of what keeps gradients from parameters, or may do so."""
STEPS = ("training_step", "compute_loss")
"""Methods that a framework calls in each step."""
LOSSES = frozenset(
    {"loss", "losses", "kl", "mse", "criterion", "distill", "distillation", "soft", "entropy"}
)
MOST_CALLS = 3
"""Functions that are followed outwards from the call of a model to what made it."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """The call of a model in a training step, and what sets its mode."""

    called: Call
    evaluated: Call


def teachers(program: Program) -> Iterator[Teacher]:
    """Those that no optimizer has; nothing, if the script freezes parameters anywhere."""
    optimizers = [call for call in program.calls if makes_optimizer(call)]
    trained = [(one, model) for one in optimizers for model in trained_names(one)]
    known = all(any(True for _ in trained_names(one)) for one in optimizers)
    if not optimizers or not known or freezes(program):
        return
    modes = [(call, _model(call)) for call in program.calls if call.method in (EVALUATES, TRAINS)]
    for called in program.calls:
        name, scope = _bound(variable(called.node.func), called.scope, program)
        if not name or not _learns_from(called, program):
            continue
        if any(_is_part(name, scope, one, model, program) for one, model in trained):
            continue
        of_it = [one for one, on in modes if on == name and _same(name, scope, one.scope)]
        if of_it and all(one.method == EVALUATES for one in of_it):
            yield Teacher(called, of_it[0])


def freezes(program: Program) -> bool:
    """Whether a word of the script says that it keeps gradients from parameters."""
    named = (name for _, name in program.variables)
    called = (source(call.node.func) for call in program.calls)
    return any(FREEZES & lower(name) for name in (*named, *called))


def _model(call: Call) -> str:
    """The variable whose mode a call sets; also of ``teacher = Net().to(device).eval()``."""
    if call.on or not isinstance(call.statement, ast.Assign):
        return call.on
    ends = call.statement.value is call.node and len(call.statement.targets) == 1
    return variable(call.statement.targets[0]) if ends else ""


def _bound(name: str, scope: Scope, program: Program) -> tuple[str, Scope]:
    """The variable behind an argument, by the only call of its function; empty: not known."""
    for _ in range(MOST_CALLS):
        if scope.variables.get(name) != [None]:
            break
        given, caller = program.passed(scope).get(name), program.caller(scope)
        if given is None or caller is None or not variable(given):
            return "", scope
        name, scope = variable(given), caller.scope
    return name, scope


def _same(name: str, one: Scope, other: Scope) -> bool:
    """Whether a variable of this name is the same one in two functions."""
    return one.holder(name) == other.holder(name) is not None


def _is_part(name: str, scope: Scope, trained: Call, model: str, program: Program) -> bool:
    """Whether an optimizer has it, or a model that may hold it."""
    whole = model.removesuffix(".module")
    if not whole or f"{name}.".startswith(f"{whole}.") or whole.startswith(f"{name}."):
        return True
    if name.startswith("self."):
        module = any(base.endswith("Module") for base in program.bases.get(scope.owner, ()))
        apart = whole.startswith("self.") and trained.scope.owner == scope.owner
        return module and not apart
    made = trained.scope.shown(whole)
    return any(variable(part) == name for one in made for part in ast.walk(one))


def _learns_from(called: Call, program: Program) -> bool:
    """Whether a training step computes a loss of its result, with the graph."""
    around = program.around(called)
    step = called.scope.name.rpartition(".")[2] in STEPS
    if not (step or any(block.node in program.training for block in around)):
        return False
    if any(block.kind == "no-grad" for block in around) or without_graph(called, program):
        return False
    target = called.statement.targets[0] if isinstance(called.statement, ast.Assign) else None
    result = variable(target) if target is not None else ""
    every: Sequence[Call] = called.scope.calls
    if not result or any(one.method in ENDS_GRAPHS and result in source(one.node) for one in every):
        return False
    return any(
        LOSSES & lower(source(one.node.func) + " " + _assigned(one))
        and any(variable(part) == result for part in ast.walk(one.node))
        for one in every
        if one is not called
    )


def without_graph(called: Call, program: Program) -> bool:
    """Whether a decorator of its function, or the call itself, ends the graph."""
    functions = [called.scope]
    while (caller := program.caller(functions[-1])) is not None and len(functions) < MOST_CALLS:
        functions.append(caller.scope)
    decorators = [
        source(one) for scope in functions for one in getattr(scope.node, "decorator_list", ())
    ]
    texts = [*decorators, source(called.statement)]
    return any(name in text for text in texts for name in ENDS_GRAPHS)


def _assigned(call: Call) -> str:
    return source(call.statement.targets[0]) if isinstance(call.statement, ast.Assign) else ""
