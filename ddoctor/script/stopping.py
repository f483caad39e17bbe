"""Loops over epochs that a rank leaves by what it alone has measured."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.script.calls import COLLECTIVES
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Call, Statement
from ddoctor.script.values import MOST_STEPS

STOPS = re.compile(r"stop|patien|early|bad_epochs|no_improve|counter|wait", re.IGNORECASE)
"""What tests of an early end are called."""
AGREES = frozenset(
    {
        *("reduce", "gather", "broadcast", "synchronize", "sync"),
        *(name.rpartition(".")[2] for name in COLLECTIVES if not name.endswith("barrier")),
    }
)
"""Words of what makes a value the same on all ranks."""


def own_stops(program: Program) -> Iterator[Statement]:
    """The ``break`` statements whose test nothing makes the same on all ranks."""
    agreed = [call for call in program.calls if _agrees(call.method)]
    for statement in program.statements:
        around = [block for block in statement.around if block.kind in ("condition", "loop")]
        if not isinstance(statement.node, ast.Break) or len(around) < 2:
            continue
        test, loop = around[-1].test, around[-2].node
        if test is None or loop not in program.epochs or not STOPS.search(ast.unparse(test)):
            continue
        names = _decided_by(test, loop)
        for _ in range(MOST_STEPS):
            shown = [value for name in names for value in statement.scope.shown(name)]
            names = names.union(*map(_variables, shown))
        asked = {*ast.walk(test)}
        makers = {
            program.called(call)
            for call in program.calls
            if call.node in asked or call.on in names or _assigns(call, names)
        }
        if not any(call.scope in makers or names & _variables(call.node) for call in agreed):
            yield statement


def _decided_by(test: ast.expr, loop: ast.AST) -> set[str]:
    """The variables in a test, and what objects in it such as ``stopper`` get in the loop."""
    parts = _variables(test)
    for node in ast.walk(loop):
        # A counter goes up by the value that its branch tests.
        if isinstance(node, ast.If) and any(
            _sets(one, parts) for one in (*node.body, *node.orelse)
        ):
            parts = parts | _variables(node.test)
    given = {
        name
        for node in ast.walk(loop)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and variable(node.func.value).partition(".")[0] in parts
        for one in node.args
        for name in _variables(one)
    }
    return given | parts


def _sets(node: ast.stmt, names: set[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(names & _variables(one) for one in targets if one is not None)


def _variables(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _assigns(call: Call, names: set[str]) -> bool:
    """Whether the result of a call goes into one of these variables."""
    statement = call.statement
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(names & _variables(one) for one in targets)


def _agrees(method: str) -> bool:
    return bool(AGREES & {method, *lower(method)})
