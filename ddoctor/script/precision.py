"""Where a script sets the precision of a model that accelerate or DeepSpeed runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.evidence.source_facts import PrecisionPlace
from ddoctor.evidence.source_lines import UNKNOWN
from ddoctor.script.calls import is_accelerator
from ddoctor.script.constants import constants
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
OF_CUDA = "torch.cuda.amp.autocast"
ON_CUDA = "torch.float16"
"""What autocast takes on a GPU if it gets no type."""
ACCELERATOR = "accelerate.Accelerator"
DEEPSPEED = "deepspeed.initialize"
MOST_STEPS = 3
"""Functions of the script around an autocast."""


@dataclass(frozen=True)
class Precision:
    """A call that sets a precision, with its values as constants."""

    node: ast.Call
    scope: Scope
    values: tuple[str, ...]
    flag: str
    """The argument of the script that chooses the first of two values; empty: none does."""
    place: PrecisionPlace


def precisions(program: Program) -> Iterator[Precision]:
    """Those of Accelerator, and those of autocasts around a prepared model and in its forward."""
    made = program.by_name.get(ACCELERATOR, ())
    for call in made:
        for word in call.node.keywords:
            if word.arg == "mixed_precision":
                values, flag = _chosen(word.value, call.scope, program)
                yield Precision(call.node, call.scope, values, flag, "accelerator")
    prepared = [*_prepared(program)] if made else []
    prepared += program.by_name.get(DEEPSPEED, ())
    models = {*_results(prepared)}
    for statement in program.statements if models else ():
        node = statement.node
        if isinstance(node, ast.With) and _trains(node, statement.scope, models, program):
            for item in node.items:
                yield from _of_context(item.context_expr, statement.scope, program, "step")
    for forward in _forwards(prepared, program):
        decorators: Sequence[ast.expr] = getattr(forward.node, "decorator_list", ())
        contexts = [*decorators]
        contexts += [
            item.context_expr
            for one in program.statements
            if one.scope is forward and isinstance(one.node, ast.With)
            for item in one.node.items
        ]
        for context in contexts:
            yield from _of_context(context, forward, program, "forward")


def _prepared(program: Program) -> Iterator[Call]:
    for call in program.calls:
        if call.method == "prepare" and is_accelerator(call):
            yield call


def _results(prepared: Sequence[Call]) -> Iterator[str]:
    """The variables that get what accelerate or DeepSpeed prepares."""
    for call in prepared:
        targets = call.statement.targets if isinstance(call.statement, ast.Assign) else []
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            yield from filter(None, map(variable, parts))


def _forwards(prepared: Sequence[Call], program: Program) -> Iterator[Scope]:
    """The forward passes of the script's own models that are prepared."""
    found: set[str] = set()
    for call in prepared:
        given = [*call.node.args, *(one.value for one in call.node.keywords if one.arg == "model")]
        for one in given:
            found |= program.objects.classes(one, call.scope)
    for owner in sorted(found):
        forward = program.objects.method(owner, "forward")
        if forward is not None:
            yield forward


def _trains(node: ast.With, scope: Scope, models: set[str], program: Program) -> bool:
    """Whether the body of a context is a part of the training step that calls such a model."""
    inside = {part for one in node.body for part in ast.walk(one)}
    called = [call for call in scope.calls if call.node in inside]
    passed = program.passed(scope)
    names = {variable(call.node.func) for call in called}
    given = {name: variable(passed[name]) for name in names if name in passed}
    if not models & {*names, *given.values()}:
        return False
    around = program.around(called[0])
    still = any(one.kind == "no-grad" for one in around)
    return not still and any(one.node in program.training for one in around)


def _of_context(
    context: ast.expr,
    scope: Scope,
    program: Program,
    place: PrecisionPlace,
    steps: int = MOST_STEPS,
) -> Iterator[Precision]:
    """The autocasts that a context enters: itself, its variable's, or those of its function."""
    if isinstance(context, ast.IfExp):
        return
    if not isinstance(context, ast.Call):
        for value, where in program.values(context, scope) if steps else ():
            yield from _of_context(value, where, program, place, steps - 1)
        return
    name = scope.names.of(context.func)
    if name in AUTOCASTS:
        values, flag = _types(context, name, scope, program)
        yield Precision(context, scope, values, flag, place)
        return
    called = program.function(context) if steps else None
    if called is None:
        return
    for result in program.results(called):
        yield from _of_context(result, called, program, place, steps - 1)
    for part in ast.walk(called.node):
        if isinstance(part, ast.With):
            for item in part.items:
                yield from _of_context(item.context_expr, called, program, place, steps - 1)


Chosen = tuple[tuple[str, ...], str]


def _chosen(value: ast.expr, scope: Scope, program: Program) -> Chosen:
    """The constants of a value, and the argument that chooses between two."""
    shown = program.values(value, scope) if variable(value) else ()
    if len(shown) == 1 and isinstance(shown[0][0], ast.IfExp):
        value, scope = shown[0]
    if not isinstance(value, ast.IfExp):
        return constants(value, scope, program), ""
    both = [constants(one, scope, program) for one in (value.body, value.orelse)]
    flag = variable(value.test)
    if flag.count(".") != 1 or any(len(one) != 1 for one in both):
        return (UNKNOWN,), ""
    return (both[0][0], both[1][0]), flag


def _types(call: ast.Call, name: str, scope: Scope, program: Program) -> Chosen:
    given = {word.arg: word.value for word in call.keywords}
    place = {name: one for one, name in enumerate(("device_type", "dtype", "enabled"))}
    if name == OF_CUDA:
        place = {"enabled": 0, "dtype": 1}
    for key, at in place.items():
        if at < len(call.args):
            given.setdefault(key, call.args[at])
    enabled = given.get("enabled")
    device = given.get("device_type")
    on = enabled is None or constants(enabled, scope, program) == ("True",)
    cuda = device is None or constants(device, scope, program) == ("cuda",)
    if not on or None in given:
        return (UNKNOWN,), ""
    if "dtype" in given:
        return _chosen(given["dtype"], scope, program)
    return (ON_CUDA if cuda else UNKNOWN,), ""
