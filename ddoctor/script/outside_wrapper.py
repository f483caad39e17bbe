"""Modules whose parameters an optimizer has besides those of DDP, which does not know them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.own_averaging import GRADIENTS
from ddoctor.script.past_wrapper import ADDS, DDP, MODEL
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.stale_optimizers import makes_optimizer, trained_names

PARAMETER = "torch.nn.Parameter"
LAYERS = ("torch.nn.Linear", "torch.nn.Embedding", "torch.nn.Conv", "torch.nn.LayerNorm")


def outside_wrapper(program: Program) -> Iterator[tuple[Call, str, Call]]:
    """What makes such a module, the variable that holds it, and the optimizer.

    Nothing where anything adds gradients up by hand, or where the module holds what DDP wraps.
    """
    if any(_of_gradients(call) for call in program.calls if call.method in ADDS):
        return
    for optimizer in filter(makes_optimizer, program.calls):
        names = dict.fromkeys(trained_names(optimizer))
        made = {name: _maker(name, optimizer.scope, program) for name in names}
        if any(one is not None and one.name == DDP for one in made.values()):
            for name, one in made.items():
                if one is not None and _has_parameters(one, program):
                    yield one, name, optimizer


def _of_gradients(call: Call) -> bool:
    """Whether gradients are named in its function: a loss for the log is none."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in GRADIENTS
        for node in ast.walk(call.scope.node)
    )


def _maker(name: str, scope: Scope, program: Program) -> Call | None:
    """The only call that the variable is assigned from; None: it is not known."""
    values = scope.assigned(name)
    nodes = {one for one in values if isinstance(one, ast.Call)}
    found = [call for call in program.calls if call.node in nodes]
    return found[0] if len(values) == len(found) == 1 else None


def _has_parameters(made: Call, program: Program) -> bool:
    """Whether it makes a module of the script that has parameters, and gets no other module."""
    if MODEL not in program.bases.get(made.name, ()):
        return False
    own = program.methods.get(made.name, ())
    names = [call.name for one in own for call in one.calls]
    holds = any(DDP in program.origins(one, made.scope) for one in made.node.args)
    return not holds and any(one == PARAMETER or one.startswith(LAYERS) for one in names)
