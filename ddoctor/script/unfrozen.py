"""Parameters that are frozen when DDP is made, and trained later.

DDP averages the gradients of those parameters that needed one when it was made
(torch/nn/parallel/distributed.py, ``_build_params_for_reducer``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.script.call_order import MOST_OUTWARDS, precedes
from ddoctor.script.names import variable
from ddoctor.script.past_wrapper import DDP
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call

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
    switches = [one for call in program.calls for one in _switches(call) if _happens(call, program)]
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
    tests = [one for one in around if one.kind not in ("loop", "no-grad")]
    read = [{*map(variable, ast.walk(one.test))} if one.test else set() for one in tests]
    return all(turns & names for names in read)


def _switches(call: Call) -> Iterator[_Switch]:
    of = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    if of is not None and call.method == SETS:
        given = [*call.node.args, *(word.value for word in call.node.keywords)]
        yield from _switch(call, of, given[0] if given else ast.Constant(True))
    elif of is not None and call.method in PARAMETERS:
        for value in _flags(call):
            yield from _switch(call, of, value)


def _switch(call: Call, of: ast.expr, value: ast.expr) -> Iterator[_Switch]:
    # A model of another name is not known to be the wrapped one.
    part = of.attr if isinstance(of, ast.Attribute) else ""
    if part and isinstance(value, ast.Constant) and isinstance(value.value, bool):
        yield _Switch(call, part, value.value)


def _flags(parameters: Call) -> Iterator[ast.expr]:
    """What a loop over parameters assigns to their flag, unless a test chooses some of them."""
    loop = parameters.statement
    for one in loop.body if isinstance(loop, ast.For) else ():
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        if getattr(target, "attr", "") == FLAG and isinstance(one, ast.Assign):
            yield one.value


def _in_sight(call: Call, wrapper: Call, program: Program) -> Call:
    """The call in the function that makes the wrapper, by which the run comes to this one."""
    for _ in range(MOST_OUTWARDS):
        outer = program.caller(call.scope)
        if call.scope is wrapper.scope or outer is None:
            break
        call = outer
    return call
