"""Layers that a forward pass uses only with an argument that no call of it gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.names import variable
from ddoctor.script.objects import defaults
from ddoctor.script.program import Program
from ddoctor.script.scopes import Scope
from ddoctor.script.switches import uses


def never_given(forward: Scope, program: Program) -> Iterator[str]:
    """The attributes of the module that it names only where such an argument is not None."""
    absent = {
        name
        for name, value in defaults(forward).items()
        if isinstance(value, ast.Constant) and value.value is None
    } & {*_left_out(forward, program)}
    body: Sequence[ast.stmt] = getattr(forward.node, "body", [])
    skipped: dict[str, bool] = {}
    for name, conditions in uses(body) if absent else ():
        fails = any(_fails(test, taken, absent) for test, taken in conditions)
        skipped[name] = skipped.get(name, True) and fails
    yield from (name for name, always in skipped.items() if always)


def _left_out(forward: Scope, program: Program) -> Iterator[str]:
    """Its arguments that no call gives, where the source shows all of its calls.

    The module is made once, as an attribute of another one, and only called by it.
    """
    made = program.by_name.get(forward.owner, ())
    statement = made[0].statement if len(made) == 1 else None
    target = variable(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    attribute = target.removeprefix("self.")
    if not target.startswith("self.") or statement is None:
        return
    calls = [
        call
        for call in program.calls
        if isinstance(call.node.func, ast.Attribute) and call.node.func.attr == attribute
    ]
    called = {call.node.func for call in calls}
    if not calls or any(
        node.attr == attribute and node not in called and not _is_base(node, program)
        for module in {one.module for one in program.scopes}
        for node in module.nodes.of(ast.Attribute)
        if isinstance(node.ctx, ast.Load)
    ):
        return
    names = [one.arg for one in forward.node.args.args[1:]]  # type: ignore[attr-defined]
    given: set[str | None] = set()
    for call in calls:
        starred = any(isinstance(one, ast.Starred) for one in call.node.args)
        given |= {*(names if starred else names[: len(call.node.args)])}
        given |= {word.arg for word in call.node.keywords}
    if None not in given:
        yield from (name for name in names if name not in given)


def _is_base(node: ast.Attribute, program: Program) -> bool:
    """Whether it only leads to a method of the module, as ``net.encoder.load_state_dict`` does."""
    return any(
        isinstance(call.node.func, ast.Attribute)
        and call.node.func.value is node
        and call.method != "forward"
        for call in program.calls
    )


def _fails(test: ast.expr, taken: bool, absent: set[str]) -> bool:
    """Whether a branch is not taken where these are None."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        right = test.comparators[0]
        none = isinstance(right, ast.Constant) and right.value is None
        if not none or variable(test.left) not in absent:
            return False
        return taken is isinstance(test.ops[0], ast.IsNot)
    return taken and variable(test) in absent
