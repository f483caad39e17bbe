"""What makes the model that an expression stands for, through variables, wrappers and functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.names import variable
from ddoctor.script.objects import SAME
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Scope

KEEP = frozenset({*SAME, "half", "bfloat16", "float", "requires_grad_", "to_empty"})
"""Methods that return the model itself."""
TAKE = frozenset({"FullyShardedDataParallel", "FSDP", "fully_shard", "get_peft_model", "compile"})
"""Functions that return the model that they get, or one that holds it."""
MOST_STEPS = 12


def makers(node: ast.expr, scope: Scope, program: Program) -> frozenset[ast.AST]:
    """The expressions that make it; of a layer in a loop, those of the model; empty: unknown."""
    return frozenset(_makers(node, scope, program, set()))


def _makers(
    node: ast.expr, scope: Scope, program: Program, seen: set[tuple[str, Scope]]
) -> Iterator[ast.AST]:
    if len(seen) > MOST_STEPS:
        return
    if isinstance(node, ast.IfExp):
        yield from _makers(node.body, scope, program, seen)
        yield from _makers(node.orelse, scope, program, seen)
    elif isinstance(node, ast.Call):
        yield from _of_call(node, scope, program, seen)
    elif (name := variable(node)) and (name, scope) not in seen:
        seen.add((name, scope))
        for value, where in _values(node, name, scope, program):
            yield from _makers(value, where, program, seen)


def _of_call(
    node: ast.Call, scope: Scope, program: Program, seen: set[tuple[str, Scope]]
) -> Iterator[ast.AST]:
    function = node.func
    called = program.function(node)
    if called is not None:
        # What several lines call makes several models.
        alone = program.caller(called) is not None
        results = program.results(called) if alone else ()
        for one in results:
            yield from _makers(one, called, program, seen)
        if not results:
            yield node
    elif isinstance(function, ast.Attribute) and function.attr in KEEP:
        yield from _makers(function.value, scope, program, seen)
    elif own_name(function) in TAKE or own_name(_last_name(function, scope)) in TAKE:
        for one in node.args[:1]:
            yield from _makers(one, scope, program, seen)
    else:
        yield node


def _last_name(function: ast.expr, scope: Scope) -> ast.expr:
    """The function under the last part of its full name, as imported ``FSDP`` has one."""
    return ast.Name(scope.named(function).rpartition(".")[2])


def _values(
    node: ast.expr, name: str, scope: Scope, program: Program
) -> Sequence[tuple[ast.expr, Scope]]:
    """What a variable or an attribute is assigned from, also by a loop over layers of a model."""
    if isinstance(node, ast.Attribute):
        found = program.objects.values(node, scope)
        return found or [(node.value, scope)] * (name.partition(".")[0] != "self")
    at: Scope | None = scope
    while at is not None and name not in at.variables:
        at = at.outer
    if at is None:
        return ()
    known = [(one, at) for one in at.variables[name] if one is not None]
    caller, given = program.caller(at), program.passed(at).get(name)
    if caller is not None and given is not None:
        known.append((given, caller.scope))
    loops = [one for one in ast.walk(at.node) if isinstance(one, ast.For) and not known]
    known += [(_taken(one.iter), at) for one in loops if name in _targets(one.target)]
    return known


def _targets(target: ast.expr) -> list[str]:
    return [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]


def _taken(taken: ast.expr) -> ast.expr:
    """The model in ``model.layers``, ``model.modules()`` and ``reversed(list(model.layers))``."""
    while True:
        if isinstance(taken, ast.Call) and isinstance(taken.func, ast.Attribute):
            taken = taken.func.value
        elif isinstance(taken, ast.Call) and taken.args:
            taken = taken.args[0]
        elif isinstance(taken, ast.Attribute) and variable(taken.value) not in ("", "self"):
            taken = taken.value
        else:
            return taken
