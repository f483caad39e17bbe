"""What a call passes: also through dictionaries, helpers and arguments of its function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.evidence.source_lines import UNKNOWN
from ddoctor.script.names import variable
from ddoctor.script.objects import arguments, defaults
from ddoctor.script.program import MOST_CALLERS, Program
from ddoctor.script.scopes import Call, Scope

LOADER = "torch.utils.data.DataLoader"
OF_WORKERS = ("num_workers", "5")
"""The keyword and the position of a DataLoader's number of workers."""
MOST_STEPS = 4
"""Helpers and callers that are followed to what makes a dataset."""


def keywords(call: Call, program: Program) -> Iterator[tuple[str, ast.expr]]:
    """The keyword arguments; those of ``**options`` by name, where the source shows them all."""
    given = spread(call, program)
    for word in call.node.keywords:
        if word.arg is None and (name := variable(word.value)) in given:
            yield from given[name]
        else:
            yield word.arg or "**", word.value


def spread(call: Call, program: Program) -> Mapping[str, Sequence[tuple[str, ast.expr]]]:
    """The options that dictionaries give, by variable."""
    if all(word.arg is not None for word in call.node.keywords):
        return {}
    names = {variable(word.value) for word in call.node.keywords if word.arg is None} - {""}
    # One that is changed later may hold more.
    names -= program.changed(call.scope.module)
    made = {name: call.scope.shown(name) for name in names}
    pairs = {name: _pairs(values[0]) for name, values in made.items() if len(values) == 1}
    return {name: known for name, known in pairs.items() if known is not None}


def _pairs(made: ast.expr) -> Sequence[tuple[str, ast.expr]] | None:
    """The keys and values of ``dict(a=1)`` or ``{"a": 1}``; None: it is neither."""
    if isinstance(made, ast.Call) and variable(made.func) == "dict" and not made.args:
        pairs = [(word.arg, word.value) for word in made.keywords]
    elif isinstance(made, ast.Dict):
        pairs = [
            (getattr(key, "value", None), v) for key, v in zip(made.keys, made.values, strict=True)
        ]
    else:
        return None
    known = [(key, value) for key, value in pairs if isinstance(key, str)]
    return known if len(known) == len(pairs) else None


def made_by(name: str, value: ast.expr, call: Call, program: Program) -> tuple[str, ...]:
    """The origins of an argument; of a DataLoader's, also those beyond the function around it.

    A number of workers that an option of the script holds is written ``args.workers``.
    """
    known = program.origins(value, call.scope)
    if call.name != LOADER or not (UNKNOWN in known or {*known} & program.functions.keys()):
        return known
    found = _origins(value, call.scope, program, MOST_STEPS, options=name in OF_WORKERS)
    return tuple(dict.fromkeys(found))


def _origins(
    value: ast.expr, scope: Scope, program: Program, steps: int, *, options: bool
) -> Iterator[str]:
    """``options``: attributes that nothing shows are written as in the source."""
    called = program.function(value) if isinstance(value, ast.Call) else None
    if not steps:
        yield UNKNOWN
    elif called is not None and called.name:
        for result in program.results(called):
            yield from _origins(result, called, program, steps - 1, options=options)
        if not program.results(called):
            yield UNKNOWN
    elif isinstance(value, ast.Name) and scope.variables.get(value.id) == [None]:
        calls = program.calls_of(scope)
        for call in calls[:MOST_CALLERS]:
            given = arguments(call.node, scope).get(value.id)
            passed, where = (given, call.scope) if given else (defaults(scope).get(value.id), scope)
            yield from (
                _origins(passed, where, program, steps - 1, options=options)
                if passed
                else (UNKNOWN,)
            )
        if not 0 < len(calls) <= MOST_CALLERS:
            yield UNKNOWN
    elif (shown := scope.shown(variable(value))) and not isinstance(value, ast.Call):
        for one in shown:
            yield from _origins(one, scope, program, steps - 1, options=options)
    else:
        found = program.origins(value, scope)
        named = options and found == (UNKNOWN,) and isinstance(value, ast.Attribute)
        yield from [ast.unparse(value)] if named else found
