"""The factors of a product, through variables, objects and functions of the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.script.batches import COUNTS, LEAST, MOST, TOTAL, multiplies_by_ranks
from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope

MOST_STEPS = 8
"""Variables and functions that are followed from a product to a factor."""
CONVERTS = ("float", "int")


@dataclass(frozen=True)
class Factor:
    """A part of a product."""

    node: ast.expr
    scope: Scope
    divides: bool
    within: ast.expr
    """The product or quotient in which it stands, or the factor itself."""


def factors(node: ast.expr, scope: Scope, program: Program) -> Iterator[Factor]:
    """Those that the source shows; a sum, and what may have several values, is one factor."""
    yield from _factors(Factor(node, scope, False, node), program, MOST_STEPS)


def _factors(one: Factor, program: Program, steps: int) -> Iterator[Factor]:
    node, scope = one.node, one.scope
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        over = one.divides is not isinstance(node.op, ast.Div)
        yield from _factors(Factor(node.left, scope, one.divides, node), program, steps)
        yield from _factors(Factor(node.right, scope, over, node), program, steps)
        return
    if isinstance(node, ast.Call) and variable(node.func) in CONVERTS and len(node.args) == 1:
        yield from _factors(Factor(node.args[0], scope, one.divides, one.within), program, steps)
        return
    shown = _shown(node, scope, program) if steps else None
    if shown is None:
        yield one
        return
    value, where = shown
    yield from _factors(Factor(value, where, one.divides, one.within), program, steps - 1)


def _shown(node: ast.expr, scope: Scope, program: Program) -> tuple[ast.expr, Scope] | None:
    """The expression that a variable or a call stands for; None: not one alone."""
    if isinstance(node, ast.Call):
        return _result(node, None, scope, program)
    if not (name := variable(node)):
        return None
    call, at = program.objects.unpacked(name, scope)
    if call is not None:
        alone = isinstance(node, ast.Name) and len(scope.variables.get(name, ())) == 1
        return _result(call, at, scope, program) if alone else None
    found = program.values(node, scope)
    before = [one for one in found if one[0].lineno < node.lineno]
    again = [one for one in before if name in map(variable, ast.walk(one[0]))]
    if len(found) > 1 and len(again) + 1 >= len(before):
        # `loss = loss / steps`, after the line that makes it.
        return again[-1] if again else None
    return found[0] if len(found) == 1 else None


def _result(
    call: ast.Call, at: int | None, scope: Scope, program: Program
) -> tuple[ast.expr, Scope] | None:
    """What the only return of a function of the script gives, or a part of that."""
    called = program.function(call) or program.objects.run(call.func, scope)
    results = program.results(called) if called is not None else ()
    if called is None or own_name(called.node) == "__init__" or len(results) != 1:
        return None
    if at is None:
        return results[0], called
    parts = results[0].elts if isinstance(results[0], ast.Tuple) else []
    return (parts[at], called) if at < len(parts) else None


OF_STEPS = re.compile(r"accum|\bgas\b|\bga_steps\b", re.IGNORECASE)
"""Names of the number of micro-steps."""
WORLDS = {"torch.distributed.get_world_size", "os.environ[WORLD_SIZE]"}
BATCHES = frozenset({"batch", "batches", "bs"})
REFERENCES = frozenset({"ref", "reference", "base", "nominal", "published", "original"})
RATE = 1
"""The position of the rate in torch's optimizers."""


def divided_losses(program: Program) -> Iterator[tuple[Factor, Call]]:
    """The losses that a number of micro-steps divides, each with its backward pass."""
    for call in program.calls:
        function = call.node.func
        own = [function.value] if isinstance(function, ast.Attribute) else []
        given = next(iter(call.node.args or own), None) if call.method == "backward" else None
        for one in factors(given, call.scope, program) if given is not None else ():
            if one.divides and OF_STEPS.search(source(one.node)):
                yield one, call
                break


def scaled_twice(program: Program) -> Iterator[tuple[Call, Factor, Factor]]:
    """The optimizers with a rate that the number of ranks multiplies twice, and both places."""
    for call, every in _rates(program):
        worlds = [one for one in every if {*program.origins(one.node, one.scope)} & WORLDS]
        if len(worlds) > 1 and not any(one.divides for one in worlds):
            yield call, worlds[0], worlds[1]


def of_one_rank(program: Program) -> Iterator[Factor]:
    """The batches of one rank that a rate has over a reference batch, without the ranks."""
    for _, every in _rates(program):
        told = [lower(own_name(one.node)) for one in every]
        batches = [
            one
            for one, names in zip(every, told, strict=True)
            if BATCHES & names and not one.divides and not TOTAL & names
        ]
        over = any(
            one.divides and (_is_a_batch(one.node) or (BATCHES & names and REFERENCES & names))
            for one, names in zip(every, told, strict=True)
        )
        ranks = any(COUNTS & names for names in told) or any(
            {*program.origins(one.node, one.scope)} & WORLDS for one in every
        )
        if batches and over and not ranks and not multiplies_by_ranks(program):
            yield batches[0]


def _rates(program: Program) -> Iterator[tuple[Call, list[Factor]]]:
    """The optimizers of torch, with the factors of their rates."""
    for call in program.calls:
        if not call.name.startswith("torch.optim."):
            continue
        args = call.node.args
        named = next((one.value for one in call.node.keywords if one.arg == "lr"), None)
        rate = args[RATE] if len(args) > RATE else named
        if rate is not None:
            yield call, [*factors(rate, call.scope, program)]


def _is_a_batch(node: ast.expr) -> bool:
    number = node.value if isinstance(node, ast.Constant) else None
    return isinstance(number, int | float) and LEAST <= number <= MOST
