"""Which files that a script loads become the state of a model or an optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddoctor.script.names import variable
from ddoctor.script.objects import arguments
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

LOAD = "torch.load"
TAKES = ("load_state_dict", "set_model_state_dict", "set_optimizer_state_dict", "set_state_dict")
DEEPEST = 4
"""Functions that a state is passed through, and assignments within one."""


def restored(program: Program) -> Iterator[Call]:
    """The calls of ``torch.load`` whose result ``load_state_dict`` gets, on whatever way."""
    for call in program.calls:
        if call.name == LOAD and _is_taken({call.node}, call.scope, program, DEEPEST):
            yield call


def _is_taken(
    nodes: Iterable[ast.AST], scope: Scope, program: Program, steps: int, names: Iterable[str] = ()
) -> bool:
    """Whether the value of these expressions, or of these variables, becomes a state."""
    sources, known = {*nodes}, {*names}

    def holds(node: ast.AST) -> bool:
        return any(one in sources or variable(one) in known for one in ast.walk(node))

    tables = (scope.variables, scope.attributes)
    for _ in range(DEEPEST):
        found = {
            name
            for table in tables
            for name, values in table.items()
            if any(value is not None and holds(value) for value in values)
        }
        if found <= known:
            break
        known |= found
    fields = {name for name in known if name.startswith("self.")}
    for call in (*scope.calls, *(_of_other_methods(scope, program) if fields else ())):
        given = (*call.node.args, *(word.value for word in call.node.keywords))
        own = call.scope is scope
        if call.method in TAKES and any(
            holds(one) if own else fields & set(map(variable, ast.walk(one))) for one in given
        ):
            return True
    if not steps:
        return False
    for call in scope.calls:
        called = program.called(call)
        if called is None or called is scope:
            continue
        passed = {name for name, one in arguments(call.node, called).items() if holds(one)}
        if passed and _is_taken((), called, program, steps - 1, passed):
            return True
    if any(map(holds, program.objects.returned(scope))):
        callers = program.objects.callers(scope)
        return any(_is_taken({one.node}, one.scope, program, steps - 1) for one in callers)
    return False


def _of_other_methods(scope: Scope, program: Program) -> Iterator[Call]:
    for other in program.scopes:
        if other is not scope and other.attributes is scope.attributes:
            yield from other.calls
