"""Samplers whose ``set_epoch`` no line reaches, and those that no loader gets."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.evidence.source_text import below
from ddoctor.script.arguments import LOADER, keywords
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.samplers import POSITIONS
from ddoctor.script.scopes import Call, Scope

SETS = "set_epoch"
SAMPLER = "torch.utils.data.DistributedSampler"


def unreached_samplers(
    program: Program,
) -> Iterator[tuple[Call, tuple[ast.ClassDef, Scope], Call | None]]:
    """The DataLoaders, each with the class of its sampler, and a call that reaches another one."""
    sets = [call for call in program.calls if call.method == SETS]
    for loader in program.by_name.get(LOADER, ()):
        by_name = dict(keywords(loader, program))
        for keyword, position in POSITIONS.items():
            args = loader.node.args
            given = args[position] if len(args) > position else by_name.get(keyword)
            owners = program.objects.classes(given, loader.scope) if given is not None else ()
            own = [one for one in owners if program.objects.method(one, SETS) is not None]
            if given is None or not own or len(own) != len(owners) or _named(keyword, program):
                continue
            if _is_told_not_to_shuffle(given, loader.scope):
                continue
            if not any(_may_reach(call, keyword, frozenset(own), program) for call in sets):
                yield loader, program.objects.own[own[0]], sets[0] if sets else None


def _is_told_not_to_shuffle(given: ast.expr, scope: Scope) -> bool:
    """Whether what makes the sampler gets a False, as ``Buckets(lengths, shuffle=False)``."""
    made = [given, *(scope.shown(variable(given)) if variable(given) else ())]
    return any(
        isinstance(part, ast.Constant) and part.value is False
        for one in made
        for part in ast.walk(one)
    )


def _named(keyword: str, program: Program) -> bool:
    """Whether a line reads the attribute of a loader that holds such a sampler, or calls its method
    by a text."""
    texts = {SETS, keyword}
    return any(
        (isinstance(node, ast.Attribute) and node.attr == keyword == "batch_sampler")
        or (isinstance(node, ast.Constant) and node.value in texts and not _asks(node, program))
        for module in {one.module for one in program.scopes}
        for node in module.nodes.of(ast.Attribute, ast.Constant)
    )


def _asks(node: ast.Constant, program: Program) -> bool:
    """Whether it is only the name in ``hasattr(sampler, "set_epoch")``."""
    return any(node in call.node.args for call in program.calls if call.method == "hasattr")


def _may_reach(call: Call, keyword: str, own: frozenset[str], program: Program) -> bool:
    """Whether the object of a call may be such a sampler."""
    receiver = getattr(call.node.func, "value", None)
    if receiver is None:
        return True
    if program.objects.classes(receiver, call.scope) & own:
        return True
    values = call.scope.shown(variable(receiver)) if variable(receiver) else ()
    shown = [receiver, *values]
    if any(isinstance(one, ast.Attribute) and one.attr in POSITIONS for one in shown):
        ends = {one.attr for one in shown if isinstance(one, ast.Attribute)}
        return keyword in ends
    made = {*program.origins(receiver, call.scope)}
    return not made or not made <= {SAMPLER}


def unused_samplers(program: Program) -> Iterator[Call]:
    """DistributedSamplers that no line of their function gives to anything."""
    for call in program.by_name.get(SAMPLER, ()):
        statement = call.statement
        made = isinstance(statement, ast.Assign) and statement.value is call.node
        target = statement.targets[0] if made else None  # type: ignore[attr-defined]
        if isinstance(target, ast.Name) and not any(_uses(call.scope.node, target.id)):
            yield call


def _uses(function: ast.AST, name: str) -> Iterator[bool]:
    """For each line that reads the variable, whether it does more than to set its epoch."""
    every = below(function)
    sets = {node.value for node in every if isinstance(node, ast.Attribute) and node.attr == SETS}
    for node in every:
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node not in sets
