"""Epochs that a sampler gets, and that never advance."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.program import Program
from ddoctor.script.scopes import Call

RESTORES = ("__init__", "load", "from_", "restore", "resume")
"""Beginnings of the names of functions that set a state, and do not advance it."""


def still_epochs(program: Program) -> Iterator[Call]:
    """Calls of `set_epoch` with a number, or a field that only a start or a restored state sets."""
    for call in program.calls:
        given = call.node.args[0] if call.method == "set_epoch" and call.node.args else None
        in_epochs = any(one.node in program.epochs for one in call.loops)
        if isinstance(given, ast.Constant) and in_epochs and not _advances_another(program):
            yield call
        if isinstance(given, ast.Attribute) and call.loops:
            sets = [
                one
                for one in program.statements
                if any(
                    isinstance(part, ast.Attribute) and part.attr == given.attr
                    for target in _targets(one.node)
                    for part in ast.walk(target)
                )
            ]
            advances = any(
                not one.scope.name.rpartition(".")[2].startswith(RESTORES)
                or isinstance(one.node, ast.AugAssign)
                for one in sets
            )
            if not advances and not any(one.method == "setattr" for one in program.calls):
                yield call


def _advances_another(program: Program) -> bool:
    """Whether a sampler gets another number: this one may be for an evaluation."""
    calls = [call for call in program.calls if call.method == "set_epoch"]
    return any(not isinstance(one, ast.Constant) for call in calls for one in call.node.args)


def _targets(node: ast.stmt) -> Sequence[ast.AST]:
    if isinstance(node, ast.Assign):
        return node.targets
    target = getattr(node, "target", None)
    return [target] if isinstance(target, ast.AST) else []
