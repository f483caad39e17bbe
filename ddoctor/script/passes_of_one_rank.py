"""Forward passes of a wrapped model that only one rank runs, and that need the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.names import source, variable
from ddoctor.script.past_wrapper import DDP
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call
from ddoctor.script.stale_optimizers import FSDP1, FSDP2

BUFFERS = ("batchnorm", "torchvision.models.resnet", "torchvision.models.mobilenet")
"""Parts of the names of what has statistics in buffers, which DDP sends before each pass.

Source: torch/nn/parallel/distributed.py, ``_pre_forward``, also without gradients.
"""


def passes_of_one_rank(program: Program) -> Iterator[Call]:
    """The calls of the model, or of the script's function that gets it and runs it."""
    wrapped = {*_given_to(FSDP2, program), *_made_by(FSDP1, program)}
    if _has_buffers(program):
        wrapped |= {*_made_by(DDP, program)}
    for call in program.calls if wrapped else ():
        around = program.around(call)
        if not any(block.kind == "one-rank" for block in around):
            continue
        # A rank that trains alone has no others to wait for.
        if any(block.node in program.training for block in around if block.kind == "loop"):
            first = next(block.kind for block in around if block.kind in ("one-rank", "loop"))
            if first == "one-rank":
                continue

        # A variable or an argument of that name may be another model.
        known = {name for name, holder in wrapped if call.scope.holder(name) == holder}
        given = known.intersection(_arguments(call))
        if variable(call.node.func) in known or any(_runs(call, one, program) for one in given):
            yield call


def _given_to(wrapper: str, program: Program) -> Iterator[tuple[str, object]]:
    """The variables of models that a function divides in place."""
    for call in program.by_name.get(wrapper, ()):
        if call.node.args and isinstance(call.node.args[0], ast.Name) and not call.loops:
            yield call.node.args[0].id, call.scope.holder(call.node.args[0].id)


def _made_by(wrapper: str, program: Program) -> Iterator[tuple[str, object]]:
    """The variables that hold nothing but a wrapped model in the end."""
    for call in program.by_name.get(wrapper, ()):
        statement = call.statement
        plain = isinstance(statement, ast.Assign) and statement.value is call.node
        silent = any(word.arg == "broadcast_buffers" for word in call.node.keywords)
        if plain and not silent and isinstance(statement, ast.Assign):
            name = variable(statement.targets[0])
            if name and call.scope.assigned(name)[-1] is call.node:
                yield name, call.scope.holder(name)


def _has_buffers(program: Program) -> bool:
    names = {call.name.lower() for call in program.calls}
    return any(part in name for part in BUFFERS for name in names)


def _arguments(call: Call) -> list[str]:
    given = [*call.node.args, *(word.value for word in call.node.keywords)]
    return [name for one in given if (name := variable(one))]


def _runs(call: Call, name: str, program: Program) -> bool:
    """Whether the function of the script that is called runs what it gets by this variable."""
    scope = program.called(call)
    if scope is None:
        return False
    named = {source(one.value): one.arg for one in call.node.keywords if one.arg}
    arguments = scope.node.args.args  # type: ignore[attr-defined]
    by_place = dict(
        zip(map(variable, call.node.args), (one.arg for one in arguments), strict=False)
    )
    inner = by_place.get(name) or named.get(name)
    return bool(inner) and any(variable(one.node.func) == inner for one in scope.calls)
