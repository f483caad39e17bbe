"""The constants that an expression may have, through variables, tables, functions and modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.evidence.source_lines import UNKNOWN
from ddoctor.script.names import variable
from ddoctor.script.objects import defaults
from ddoctor.script.program import Program
from ddoctor.script.scopes import Scope

MOST_STEPS = 8
"""Variables and functions that are followed."""


def constants(value: ast.expr, scope: Scope, program: Program) -> tuple[str, ...]:
    """Its values, each once; names of torch are whole, as ``torch.float16``; ``UNKNOWN``: others.

    An argument of the script is written as in the source: ``args.precision``.
    """
    return tuple(dict.fromkeys(_constants(value, scope, program, MOST_STEPS)))


def _constants(value: ast.expr, scope: Scope, program: Program, steps: int) -> Iterator[str]:
    name = scope.names.of(value)
    if isinstance(value, ast.Constant):
        yield str(value.value)
    elif name.startswith("torch."):
        yield name
    elif isinstance(value, ast.IfExp):
        yield from _constants(value.body, scope, program, steps)
        yield from _constants(value.orelse, scope, program, steps)
    elif not steps:
        yield UNKNOWN
    elif isinstance(value, ast.Subscript):
        yield from _of_table(value.value, value.slice, scope, program, steps - 1)
    elif isinstance(value, ast.Call):
        yield from _of_call(value, scope, program, steps - 1)
    elif variable(value):
        yield from _of_variable(value, scope, program, steps - 1)
    else:
        yield UNKNOWN


def _of_table(
    table: ast.expr, key: ast.expr, scope: Scope, program: Program, steps: int
) -> Iterator[str]:
    """A value of a dictionary that the source shows as a whole."""
    found: Sequence[tuple[ast.expr, Scope]] = [(table, scope)]
    if not isinstance(table, ast.Dict):
        changed = variable(table) in program.changed(scope.module)
        found = [] if changed else program.values(table, scope)
    for each in _constants(key, scope, program, steps) if found else (UNKNOWN,):
        for made, inner in found or [(table, scope)]:
            chosen = _entries(made).get(each)
            if chosen is None:
                yield UNKNOWN
            else:
                yield from _constants(chosen, inner, program, steps)


def _entries(made: ast.expr) -> Mapping[str, ast.expr]:
    if not isinstance(made, ast.Dict):
        return {}
    pairs = zip(made.keys, made.values, strict=True)
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def _of_call(call: ast.Call, scope: Scope, program: Program, steps: int) -> Iterator[str]:
    given, function = call.args, call.func
    called = program.function(call)
    if variable(function) == "getattr" and len(given) == 2 and scope.names.of(given[0]) == "torch":
        yield from (f"torch.{one}" for one in _constants(given[1], scope, program, steps))
    elif isinstance(function, ast.Attribute) and function.attr == "get" and len(given) == 1:
        yield from _of_table(function.value, given[0], scope, program, steps)
    elif called is not None and program.results(called):
        for one in program.results(called):
            yield from _constants(one, called, program, steps)
    else:
        yield UNKNOWN


def _of_variable(value: ast.expr, scope: Scope, program: Program, steps: int) -> Iterator[str]:
    caller, written = program.caller(scope), variable(value)
    default = defaults(scope).get(written)
    if default is not None and written not in program.passed(scope):
        # Without a call that the source shows, the argument may have another value.
        spread = caller is None or any(one.arg is None for one in caller.node.keywords)
        yield from (UNKNOWN,) if spread else _constants(default, scope, program, steps)
    elif found := program.values(value, scope):
        for one, inner in found:
            yield from _constants(one, inner, program, steps)
    else:
        # Perhaps of the parsed arguments.
        yield written if written.count(".") == 1 else UNKNOWN
