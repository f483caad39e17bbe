"""Parameters that are frozen when DDP is made, and trained later.

DDP averages the gradients of those parameters that needed one when it was made
(torch/nn/parallel/distributed.py, ``_build_params_for_reducer``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.script.call_order import MOST_OUTWARDS, precedes
from ddoctor.script.names import variable
from ddoctor.script.objects import arguments, defaults
from ddoctor.script.past_wrapper import DDP
from ddoctor.script.program import MOST_CALLERS, Program
from ddoctor.script.scopes import Block, Call, Scope

FLAG, SETS = "requires_grad", "requires_grad_"
PARAMETERS = ("parameters", "named_parameters")


@dataclass(frozen=True)
class Unfrozen:
    """What lets parameters train again, and the wrapper that was made before."""

    call: Call
    wrapper: Call


@dataclass(frozen=True)
class _Switch:
    """A call that freezes a part of a model, or lets it train."""

    call: Call
    part: str
    """The last name of the part, such as ``backbone``."""
    on: bool


def unfrozen(program: Program) -> Iterator[Unfrozen]:
    """The calls after the only wrapper, of a part that was frozen before it."""
    wrappers = program.by_name.get(DDP, ())
    if len(wrappers) != 1 or wrappers[0].loops:
        return
    switches = [
        one
        for call in program.calls
        for one in _switches(call, program)
        if _happens(one.call, program)
    ]
    before = [one for one in switches if precedes(one.call, wrappers[0], program)]
    frozen = {one.part for one in before} - {one.part for one in before if one.on}
    for one in switches:
        if one.on and one.part in frozen and precedes(wrappers[0], one.call, program):
            yield Unfrozen(_in_sight(one.call, wrappers[0], program), wrappers[0])


def _happens(call: Call, program: Program) -> bool:
    """Whether every run comes to it, at the latest in some turn of a loop, whatever its options."""
    around = program.around(call)
    turns = {
        one.id
        for block in around
        if isinstance(block.node, ast.For)
        for one in ast.walk(block.node.target)
        if isinstance(one, ast.Name)
    }
    tests = _tests(around)
    read = [{*map(variable, ast.walk(one.test))} if one.test else set() for one in tests]
    return all((turns | _handed_on(turns, call.scope, program)) & names for names in read)


def _handed_on(turns: set[str], scope: Scope, program: Program) -> set[str]:
    """The arguments that get what changes with each turn of a loop."""
    found: set[str] = set()
    for _ in range(MOST_OUTWARDS):
        given = program.passed(scope)
        found |= {name for name, value in given.items() if variable(value) in turns}
        outer = program.caller(scope)
        if outer is None:
            break
        scope = outer.scope
    return found


def _switches(call: Call, program: Program) -> Iterator[_Switch]:
    of = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    if of is not None and call.method == SETS:
        given = [*call.node.args, *(word.value for word in call.node.keywords)]
        each = _parameters(call, of)
        yield from _switch(call, each or of, given[0] if given else ast.Constant(True), program)
    elif of is not None and call.method in PARAMETERS:
        for value in _flags(call):
            yield from _switch(call, of, value, program)


def _parameters(call: Call, of: ast.expr) -> ast.expr | None:
    """The part of a model whose parameters a loop around the call goes through one by one."""
    loop = call.around[-1].node if call.around else None
    if not isinstance(loop, ast.For) or variable(loop.target) != variable(of):
        return None
    goes = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    return goes.value if isinstance(goes, ast.Attribute) and goes.attr in PARAMETERS else None


def _switch(call: Call, of: ast.expr, value: ast.expr, program: Program) -> Iterator[_Switch]:
    # A model of another name is not known to be the wrapped one.
    part = of.attr if isinstance(of, ast.Attribute) else ""
    for at, given in _given(call, value, program) if part else ():
        if isinstance(given, ast.Constant) and isinstance(given.value, bool):
            yield _Switch(at, part, given.value)


def _given(call: Call, value: ast.expr, program: Program) -> Iterator[tuple[Call, ast.expr]]:
    """The value; of an argument, what each call of the function passes."""
    passes = program.calls_of(call.scope)
    known = defaults(call.scope)
    if not isinstance(value, ast.Name) or call.scope.variables.get(value.id) != [None]:
        yield call, value
    elif len(passes) <= MOST_CALLERS and not _tests(call.around):
        for one in passes:
            given = {**known, **arguments(one.node, call.scope)}
            if value.id in given:
                yield one, given[value.id]


def _tests(around: Sequence[Block]) -> Sequence[Block]:
    return [one for one in around if one.kind not in ("loop", "no-grad")]


def _flags(parameters: Call) -> Iterator[ast.expr]:
    """What a loop over parameters assigns to their flag, unless a test chooses some of them."""
    loop = parameters.statement
    for one in loop.body if isinstance(loop, ast.For) else ():
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        if getattr(target, "attr", "") == FLAG and isinstance(one, ast.Assign):
            yield one.value


def _in_sight(call: Call, wrapper: Call, program: Program) -> Call:
    """The call by which the function that makes the wrapper comes to this one; else this one."""
    outer: Call | None = call
    for _ in range(MOST_OUTWARDS):
        if outer is None or outer.scope is wrapper.scope:
            break
        outer = program.caller(outer.scope)
    return outer if outer is not None and outer.scope is wrapper.scope else call
